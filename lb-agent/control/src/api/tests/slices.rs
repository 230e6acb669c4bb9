//! `EndpointSlice`s: their generation.

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
