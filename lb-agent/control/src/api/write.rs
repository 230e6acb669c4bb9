//! A write: the options of its request, read once for creation, replacement and patch, and its result.

use std::sync::Arc;

use hyper::http::request::Parts;

use super::failure::Failure;
use super::form::Form;
use super::query::{Query, Validation};
use super::server::Server;
use super::target::Target;
use crate::kind::Kind;
use crate::service::Ranges;
use crate::store::{Key, Object};

/// A request that writes, apart from its body.
pub(crate) struct Write {
    pub(crate) form: Form,
    pub(crate) query: Query,
    pub(crate) validation: Validation,
    pub(crate) wish: Wish,
}

impl Write {
    /// Reads the options of a write; `options` is their type, for messages.
    ///
    /// Errors: a form, dry run or validation that the API does not know.
    pub(crate) fn of(
        server: &Server,
        parts: &Parts,
        target: &Target,
        options: &str,
    ) -> Result<Self, Failure> {
        let (form, query) = (Form::of(parts)?, Query::of(parts));
        let wish = Wish::new(server, target, query.is_dry(options)?);
        let validation = query.validation(options)?;
        Ok(Self { form, query, validation, wish })
    }
}

/// The options of a write, apart from the object.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) kind: &'static Kind,
    pub(crate) namespace: String,
    pub(crate) is_dry: bool,
    pub(crate) is_status: bool,
    pub(crate) ranges: Ranges,
    /// Port of the API, for its own Service.
    pub(crate) port: u16,
}

impl Wish {
    pub(crate) fn new(server: &Server, target: &Target, is_dry: bool) -> Self {
        let (kind, namespace) = (target.kind, target.namespace().to_owned());
        let (is_status, ranges, port) = (target.is_status, server.ranges.clone(), server.port);
        Self { kind, namespace, is_dry, is_status, ranges, port }
    }

    pub(crate) fn key(&self, name: &str) -> Key {
        Key::new(self.kind.resource, &self.namespace, name)
    }
}

/// The result of a write: the object, the warnings for the client, and whether the object is new.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) object: Arc<Object>,
    pub(crate) warnings: Vec<String>,
    pub(crate) is_new: bool,
}
