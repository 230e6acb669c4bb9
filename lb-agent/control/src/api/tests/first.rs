//! The first objects: they stay, come again, and hinder no start.

use super::*;
use crate::api::bootstrap::{Missing, create};
use crate::store::Key;

const OWN: &str = "/api/v1/namespaces/default/services/kubernetes";

/// Creates what is missing, as a start does; returns what could not be created.
async fn start_again(api: &Api) -> Vec<Missing> {
    bootstrap(&api.server).await.unwrap();
    let ranges = api.server.ranges.clone();
    let work = api.server.store.write(move |it| Ok::<_, ()>(create(it, &ranges, 6443)));
    work.await.unwrap().unwrap()
}

#[tokio::test]
async fn the_first_namespaces_cannot_be_deleted() {
    let api = Api::start().await;
    for name in ["default", "kube-system", "kube-public"] {
        for options in ["", "?dryRun=All"] {
            let (code, answer) = api.delete(&format!("/api/v1/namespaces/{name}{options}")).await;
            let why =
                format!("namespaces {name:?} is forbidden: this namespace may not be deleted");
            assert_eq!((code, &answer["message"]), (403, &json!(why)));
        }
    }
    assert_eq!(api.delete("/api/v1/namespaces").await.0, 405);
    assert_eq!(api.delete("/api/v1/namespaces/kube-node-lease").await.0, 200);
}

#[tokio::test]
async fn the_service_of_the_api_comes_again() {
    let api = Api::start().await;
    let mut before = api.get(OWN).await.1;
    for path in [OWN, SERVICES] {
        assert_eq!(api.delete(path).await.0, 200);
        let now = api.get(OWN).await.1;
        assert_eq!(now["spec"], before["spec"]);
        assert_ne!(now["metadata"]["uid"], before["metadata"]["uid"]);
        assert_eq!(api.get("/apis/networking.k8s.io/v1/ipaddresses/10.96.0.1").await.0, 200);
        before = now;
    }
    drop(api.patch(OWN, &json!({"metadata": {"finalizers": ["a.example/b"]}})).await);
    assert_eq!(api.delete(OWN).await.1["metadata"]["uid"], before["metadata"]["uid"]);
    let last = api.patch(OWN, &json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(last["metadata"]["uid"], before["metadata"]["uid"]);
    let now = api.get(OWN).await.1;
    assert_eq!(now["metadata"].get("deletionTimestamp"), None);
    assert_eq!(now["spec"], before["spec"]);
}

#[tokio::test]
async fn a_taken_first_address_hinders_no_start() {
    let api = Api::start().await;
    let alias = json!({"spec": {"type": "ExternalName", "externalName": "a.example"}});
    drop(api.patch(OWN, &alias).await);
    let thief = json!({"metadata": {"name": "thief"},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}});
    drop(api.put("POST", SERVICES, &thief).await);
    assert_eq!(api.delete(OWN).await.0, 200);
    let missing = start_again(&api).await;
    let [Missing { object, cause, remedy }] = missing.as_slice() else { panic!("{missing:?}") };
    assert_eq!(object, "services default/kubernetes");
    assert!(cause.ends_with("provided IP is already allocated"), "{cause}");
    assert!(remedy.contains("delete the Service that has 10.96.0.1"), "{remedy}");
    assert_eq!(api.delete(&format!("{SERVICES}/thief")).await.0, 200);
    assert!(start_again(&api).await.is_empty());
    assert_eq!(api.get(OWN).await.1["spec"]["clusterIP"], "10.96.0.1");
}

#[tokio::test]
async fn a_terminating_default_namespace_hinders_no_start() {
    let api = Api::start().await;
    let ended = api.server.store.write(|it| {
        let key = Key::new("namespaces", "", "default");
        let mut value = it.get(&key).ok_or(())?.value();
        value["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        drop(it.put(key, value));
        it.delete(&Key::new("services", "default", "kubernetes")).ok_or(())
    });
    assert!(ended.await.unwrap().is_ok());
    let missing = start_again(&api).await;
    let [Missing { object, remedy, .. }] = missing.as_slice() else { panic!("{missing:?}") };
    assert_eq!(object, "services default/kubernetes");
    assert!(remedy.contains("finalizers"), "{remedy}");
}
