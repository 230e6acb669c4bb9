//! The options of a request that writes, read once for creation, replacement and patch.

use hyper::http::request::Parts;

use super::Server;
use super::create::Wish;
use super::failure::Failure;
use super::form::Form;
use super::query::{Query, Validation};
use super::target::Target;

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
