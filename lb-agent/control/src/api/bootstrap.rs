//! The objects that exist before the first client: namespaces, the ranges, and the API's own Service.

use serde_json::{Value, json};

use super::Server;
use super::create::{Made, Wish, make};
use super::failure::Failure;
use crate::kind::Kind;
use crate::store::{Key, Transaction};

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Creates the objects that are missing; objects that exist are left as they are.
pub async fn bootstrap(server: &Server, port: u16) -> Result<(), Failure> {
    let ranges = server.ranges.clone();
    let work = move |transaction: &mut Transaction<'_>| {
        let wish = |resource: &str, group: &str, namespace: &str| {
            let kind = Kind::find(group, resource).ok_or_else(Failure::no_path)?;
            let (namespace, ranges) = (namespace.to_owned(), ranges.clone());
            Ok::<_, Failure>(Wish { kind, namespace, is_dry: false, is_status: false, ranges })
        };
        // Namespaces first, because the Service is created in one.
        for name in NAMESPACES {
            ensure(transaction, &wish("namespaces", "", "")?, name, json!({}))?;
        }
        let cidrs: Vec<String> = ranges.all().map(|it| it.net().to_string()).collect();
        let ready = json!({"type": "Ready", "status": "True", "reason": "", "lastTransitionTime": crate::schema::now(),
            "message": "Kubernetes Service CIDR is ready"});
        let range = json!({"spec": {"cidrs": cidrs}, "status": {"conditions": [ready]}});
        // The range is created before the Service, because it contains the Service's address.
        ensure(transaction, &wish("servicecidrs", "networking.k8s.io", "")?, "kubernetes", range)?;
        let service = json!({
            "metadata": {"labels": {"component": "apiserver", "provider": "kubernetes"}},
            "spec": {
                "clusterIP": ranges.first().first().to_string(), "ipFamilyPolicy": "SingleStack",
                "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}],
            },
        });
        ensure(transaction, &wish("services", "", "default")?, "kubernetes", service)
    };
    server.store.write(work).await?
}

fn ensure(
    transaction: &mut Transaction<'_>,
    wish: &Wish,
    name: &str,
    mut value: Value,
) -> Result<(), Failure> {
    if transaction.get(&Key::new(wish.kind.resource, &wish.namespace, name)).is_some() {
        return Ok(());
    }
    super::create::set(&mut value, "name", name.into());
    let _made: Made = make(transaction, wish, value)?;
    Ok(())
}
