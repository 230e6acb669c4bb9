//! JSON patches: their limits, and their faults.

use super::*;

const NAMESPACE: &str = "/api/v1/namespaces/default";

async fn patch(api: &Api, operations: &Value) -> (u16, String) {
    let media = "application/json-patch+json";
    let (code, answer) = api.send("PATCH", NAMESPACE, media, operations).await;
    (code, answer["message"].as_str().unwrap_or_default().to_owned())
}

fn copies(count: usize) -> Value {
    let first = json!({"op": "add", "path": "/x", "value": {"text": "0123456789".repeat(100)}});
    // Each copy puts the value into itself, which doubles it.
    let copy = |index| json!({"op": "copy", "from": "/x", "path": format!("/x/{index}")});
    std::iter::once(first).chain((0..count).map(copy)).collect()
}

#[tokio::test]
async fn copies_in_a_patch_are_limited_by_their_size() {
    let api = Api::start().await;
    let (code, message) = patch(&api, &copies(20)).await;
    assert_eq!(code, 422, "{message}");
    assert!(message.contains("exceeding the limit 3145728"), "{message}");
    assert_eq!(patch(&api, &copies(10)).await.0, 200);
}

#[tokio::test]
async fn a_failed_operation_of_a_patch_is_named() {
    let api = Api::start().await;
    let add = json!({"op": "add", "path": "/metadata/labels/a", "value": "b"});
    let (code, message) =
        patch(&api, &json!([add, {"op": "remove", "path": "/metadata/nothing"}])).await;
    assert_eq!(code, 422, "{message}");
    assert!(message.contains("operation '/1' failed at path '/metadata/nothing'"), "{message}");
    assert_eq!(api.get(NAMESPACE).await.1["metadata"]["labels"].get("a"), None);
}

#[tokio::test]
async fn values_in_a_patch_are_limited_by_their_depth() {
    let api = Api::start().await;
    // The deepest value in a document that can be read, put into a deeper place.
    let nested = (0..120).fold(json!({}), |it, _| json!({"a": it}));
    let add = |path: &str| json!({"op": "add", "path": path, "value": nested});
    assert_eq!(patch(&api, &json!([add("/x")])).await.0, 200);
    let place = "/x/a/a/a/a/a/a/b";
    for deeper in [
        json!([add("/x"), add(place)]),
        json!([add("/x"), {"op": "replace", "path": "/x/a/a/a/a/a/a/a", "value": nested}]),
        json!([add("/x"), {"op": "copy", "from": "/x", "path": place}]),
        json!([add("/x"), add("/y"), {"op": "move", "from": "/y", "path": place}]),
    ] {
        let (code, message) = patch(&api, &deeper).await;
        assert_eq!(code, 422, "{message}");
        assert!(message.contains("nests more than 127 values"), "{message}");
    }
}
