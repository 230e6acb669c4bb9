//! Namespaces that are being deleted: they wait for their content and for their own finalizers.

use super::*;

const NAMESPACE: &str = "/api/v1/namespaces/a";
const POD: &str = "/api/v1/namespaces/a/pods/p";

fn finalizers(names: &Value) -> Value {
    json!({"metadata": {"finalizers": names}})
}

/// Makes an API with a namespace that has a finalizer, and with a pod in it if `is_full`.
async fn with_namespace(is_full: bool) -> Api {
    let api = Api::start().await;
    let object = json!({"metadata": {"name": "a", "finalizers": ["a.example/b"]}});
    drop(api.put("POST", "/api/v1/namespaces", &object).await);
    if is_full {
        let pod = json!({"metadata": {"name": "p", "finalizers": ["a.example/b"]},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        drop(api.put("POST", "/api/v1/namespaces/a/pods", &pod).await);
    }
    let (code, answer) = api.delete(NAMESPACE).await;
    assert_eq!((code, &answer["status"]["phase"]), (200, &json!("Terminating")));
    api
}

#[tokio::test]
async fn statement_86_an_empty_namespace_goes_with_its_last_finalizer() {
    let api = with_namespace(false).await;
    assert_eq!(api.delete(NAMESPACE).await.0, 200);
    assert_eq!(api.get(NAMESPACE).await.0, 200);
    drop(api.patch(NAMESPACE, &finalizers(&json!(null))).await);
    assert_eq!(api.get(NAMESPACE).await.0, 404);
}

#[tokio::test]
async fn statement_86_a_namespace_with_finalizers_outlasts_its_content() {
    let api = with_namespace(true).await;
    drop(api.patch(POD, &finalizers(&json!(null))).await);
    assert_eq!(api.get(POD).await.0, 404);
    assert_eq!(api.get(NAMESPACE).await.0, 200);
    drop(api.patch(NAMESPACE, &finalizers(&json!(null))).await);
    assert_eq!(api.get(NAMESPACE).await.0, 404);
}

#[tokio::test]
async fn statement_86_a_namespace_without_finalizers_waits_for_its_content() {
    let api = with_namespace(true).await;
    let none = json!({"metadata": {"finalizers": null}, "spec": {"finalizers": []}});
    drop(api.patch(NAMESPACE, &none).await);
    assert_eq!((api.get(NAMESPACE).await.0, api.get(POD).await.0), (200, 200));
    drop(api.patch(POD, &finalizers(&json!(null))).await);
    assert_eq!((api.get(NAMESPACE).await.0, api.get(POD).await.0), (404, 404));
}
