//! `EndpointSlice`s: their generation, and their owners.

use super::*;

#[tokio::test]
async fn statement_85_the_same_slice_again_changes_nothing() {
    let api = Api::start().await;
    let mut slice = json!({"metadata": {"name": "a"}, "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 80}]});
    let path = format!("{SLICES}/a");
    let made = api.put("POST", SLICES, &slice).await;
    for _ in 0..2 {
        assert_eq!(api.put("PUT", &path, &slice).await, made);
    }
    slice["endpoints"][0]["conditions"] = json!({"ready": false});
    let changed = api.put("PUT", &path, &slice).await;
    assert_eq!(changed["metadata"]["generation"], 2);
    assert_ne!(changed["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
}

/// Creates a headless Service; returns a reference to it as an owner.
async fn owner(api: &Api, name: &str) -> Value {
    let service = json!({"metadata": {"name": name}, "spec": {"clusterIP": "None"}});
    let made = api.put("POST", SERVICES, &service).await;
    json!({"apiVersion": "v1", "kind": "Service", "name": name, "uid": made["metadata"]["uid"]})
}

async fn slice(api: &Api, owners: &Value, finalizers: &Value) -> String {
    let metadata = json!({"name": "a", "ownerReferences": owners, "finalizers": finalizers});
    let slice = json!({"metadata": metadata, "addressType": "IPv4"});
    drop(api.put("POST", SLICES, &slice).await);
    format!("{SLICES}/a")
}

#[tokio::test]
async fn statement_86_an_owned_slice_keeps_its_finalizers() {
    let api = Api::start().await;
    let path = slice(&api, &json!([owner(&api, "x").await]), &json!(["a.example/b"])).await;
    assert_eq!(api.delete(&format!("{SERVICES}/x")).await.0, 200);
    let (code, kept) = api.get(&path).await;
    assert_eq!(code, 200);
    assert!(kept["metadata"]["deletionTimestamp"].is_string(), "{kept}");
    drop(api.patch(&path, &json!({"metadata": {"finalizers": null}})).await);
    assert_eq!(api.get(&path).await.0, 404);
}

#[tokio::test]
async fn statement_86_a_slice_goes_with_the_last_of_its_owners() {
    let api = Api::start().await;
    let mut replaced = owner(&api, "x").await;
    replaced["uid"] = json!("of-an-earlier-service");
    let owners = json!([owner(&api, "y").await, owner(&api, "z").await, replaced]);
    let path = slice(&api, &owners, &json!([])).await;
    assert_eq!(api.delete(&format!("{SERVICES}/y")).await.0, 200);
    let (code, kept) = api.get(&path).await;
    assert_eq!((code, kept["metadata"].get("deletionTimestamp")), (200, None));
    assert_eq!(api.delete(&format!("{SERVICES}/z")).await.0, 200);
    assert_eq!(api.get(&path).await.0, 404);
}
