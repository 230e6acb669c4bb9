//! The objects that exist before the first client: namespaces, the ranges, and the API's own Service.
//!
//! The Service is created again whenever it is deleted. A failure here is a warning: the other objects are served.

use std::convert::Infallible;

use serde_json::{Value, json};

use super::create::make;
use super::failure::Failure;
use super::metadata::set;
use super::server::Server;
use super::write::{Made, Wish};
use crate::kind::Kind;
use crate::service::Ranges;
use crate::store::{self, Key, Transaction};

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Namespaces that cannot be deleted, as with upstream's admission plugin `NamespaceLifecycle`.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// A first object that does not exist and could not be created.
#[derive(Debug)]
pub(super) struct Missing {
    pub(super) object: String,
    pub(super) cause: String,
    /// The action that helps, for the operator.
    pub(super) remedy: String,
}

/// Creates the objects that are missing; objects that exist are left as they are. An object that cannot be created is
/// logged. Errors: of the store alone.
pub async fn bootstrap(server: &Server) -> Result<(), store::Error> {
    let (ranges, port) = (server.ranges.clone(), server.port);
    let work = move |it: &mut Transaction<'_>| Ok::<_, Infallible>(create(it, &ranges, port));
    let Ok(missing) = server.store.write(work).await?;
    missing.iter().for_each(warn);
    Ok(())
}

/// Creates the API's own Service again if the object that was deleted is this Service.
pub(super) fn restore(transaction: &mut Transaction<'_>, wish: &Wish, deleted: &Key) {
    if *deleted != own() {
        return;
    }
    // Upstream's controller does it within ten seconds. Here no client sees the cluster without the Service.
    if let Err(missing) = service(transaction, &wish.ranges, wish.port) {
        warn(&missing);
    }
}

/// Reports whether an object is one that must not be deleted.
pub(super) fn is_immortal(key: &Key) -> bool {
    key.resource == "namespaces" && IMMORTAL.contains(&key.name.as_str())
}

/// Creates the missing objects; returns those that still are.
pub(super) fn create(
    transaction: &mut Transaction<'_>,
    ranges: &Ranges,
    port: u16,
) -> Vec<Missing> {
    let mut missing = Vec::new();
    // Namespaces first, because the Service is created in one.
    for name in NAMESPACES {
        let key = Key::new("namespaces", "", name);
        missing.extend(ensure(transaction, ranges, key, json!({})).err());
    }
    let cidrs: Vec<String> = ranges.all().map(|it| it.net().to_string()).collect();
    let ready = json!({"type": "Ready", "status": "True", "reason": "", "lastTransitionTime": crate::schema::now(),
        "message": "Kubernetes Service CIDR is ready"});
    let range = json!({"spec": {"cidrs": cidrs}, "status": {"conditions": [ready]}});
    // The range is created before the Service, because it contains the Service's address.
    let key = Key::new("servicecidrs", "", "kubernetes");
    missing.extend(ensure(transaction, ranges, key, range).err());
    missing.extend(service(transaction, ranges, port).err());
    missing
}

fn own() -> Key {
    Key::new("services", "default", "kubernetes")
}

fn service(transaction: &mut Transaction<'_>, ranges: &Ranges, port: u16) -> Result<(), Missing> {
    let service = json!({
        "metadata": {"labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "clusterIP": ranges.first().first().to_string(), "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}],
        },
    });
    ensure(transaction, ranges, own(), service)
}

fn ensure(
    transaction: &mut Transaction<'_>,
    ranges: &Ranges,
    key: Key,
    value: Value,
) -> Result<(), Missing> {
    if transaction.get(&key).is_some() {
        return Ok(());
    }
    let object = format!("{} {}/{}", key.resource, key.namespace, key.name).replace(" /", " ");
    make_one(transaction, ranges, key, value).map_err(|failure| {
        // Only the Service can fail: its namespace is being deleted, or another Service has its address.
        let remedy = if failure.code == 403 {
            "remove the finalizers of the objects left in the namespace, then start again".into()
        } else {
            let address = ranges.first().first();
            format!(
                "delete the Service that has {address} (kubectl get services -A), then start again"
            )
        };
        Missing { object, cause: failure.message, remedy }
    })
}

fn make_one(
    transaction: &mut Transaction<'_>,
    ranges: &Ranges,
    key: Key,
    mut value: Value,
) -> Result<(), Failure> {
    let kind = Kind::kept(&key.resource).ok_or_else(Failure::no_path)?;
    set(&mut value, "name", key.name.into());
    let ranges = ranges.clone();
    let wish =
        Wish { kind, namespace: key.namespace, is_dry: false, is_status: false, ranges, port: 0 };
    let _made: Made = make(transaction, &wish, value)?;
    Ok(())
}

fn warn(missing: &Missing) {
    let Missing { object, cause, remedy } = missing;
    tracing::warn!(object, cause, remedy, "first object not created");
}
