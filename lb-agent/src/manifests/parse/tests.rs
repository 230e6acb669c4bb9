//! Documents, lists, formats, and the positions of errors.

use super::*;

fn objects(text: &str) -> Result<Vec<Object>, Unreadable> {
    contents(text).map(|contents| contents.objects)
}

fn kinds(text: &str) -> Vec<&'static str> {
    objects(text).expect("readable").iter().map(Object::kind).collect()
}

fn names(text: &str) -> Vec<String> {
    let name = |object: Object| match object {
        Object::Service(object) => object.metadata.name,
        Object::Slice(object) => object.metadata.name,
        Object::Node(object) => object.metadata.name,
        Object::ServiceCidr(object) => object.metadata.name,
    };
    objects(text).expect("readable").into_iter().map(name).collect()
}

#[test]
fn a_file_may_hold_many_documents() {
    let text = "\
%YAML 1.2
---
# only a comment
---
apiVersion: v1
kind: Service
metadata: { name: a }
--- # the next
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: { name: b }
addressType: IPv4
endpoints: []
...
apiVersion: v1
kind: Node
metadata: { name: c }
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: { name: d }
---
";
    assert_eq!(kinds(text), ["Service", "EndpointSlice", "Node", "ServiceCIDR"]);
    assert_eq!(names(text), ["a", "b", "c", "d"]);
}

#[test]
fn a_marker_inside_a_text_is_no_marker() {
    let text = "\
apiVersion: v1
kind: Service
metadata:
  name: a
  annotations:
    note: |
      before
      ---
      after
    other: ---x
";
    assert_eq!(names(text), ["a"]);
}

#[test]
fn unused_kinds_are_ignored() {
    let text = "\
apiVersion: apps/v1
kind: Deployment
metadata: { name: a }
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata: { name: b }
---
{ unrelated: [1, 2] }
---
apiVersion: v1
kind: Service
metadata: { name: c }
";
    assert_eq!(names(text), ["c"]);
}

#[test]
fn lists_are_read_item_by_item() {
    let text = "\
kind: List
apiVersion: v1
items:
- { apiVersion: v1, kind: Service, metadata: { name: a } }
- { apiVersion: v1, kind: Secret, metadata: { name: x } }
- kind: EndpointSlice
  metadata: { name: b }
  apiVersion: discovery.k8s.io/v1
  addressType: IPv4
  endpoints: [{ addresses: [10.0.0.01] }]
---
apiVersion: v1
kind: ServiceList
items: [{ metadata: { name: c } }]
---
apiVersion: v1
kind: List
items: []
";
    assert_eq!(names(text), ["a", "b", "c"]);
}

#[test]
fn json_is_read_too() {
    let text = "{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"Service\",\n\t\"metadata\": \
                {\"name\": \"a\", \"labels\": {\"x\": \"y\"}},\n\t\"spec\": {\"ports\": [{\"port\": 80}]}\n}\n";
    assert_eq!(names(text), ["a"]);
}

#[test]
fn an_empty_file_holds_nothing() {
    for text in ["", "\n\n", "# comment\n", "---\n---\n", "\u{feff}"] {
        assert_eq!(kinds(text), Vec::<&str>::new(), "{text:?}");
    }
}

#[test]
fn errors_name_the_line_of_the_file() {
    let text = "\
apiVersion: v1
kind: Service
metadata: { name: a }
---
apiVersion: v1
kind: Service
metadata: { name: b }
spec:
  ports:
  - port: eighty
";
    let wrong = objects(text).expect_err("an error");
    assert_eq!((wrong.line, wrong.column), (10, 11), "{wrong:?}");
    assert!(!wrong.message.contains('\n') && !wrong.message.contains(" line "), "{wrong:?}");
}

#[test]
fn an_old_version_is_named() {
    let text = "\napiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\n";
    let wrong = objects(text).expect_err("an error");
    assert_eq!(wrong.line, 1, "where its document begins: {wrong:?}");
    assert!(wrong.message.ends_with("expected discovery.k8s.io/v1"), "{wrong:?}");
}

#[test]
fn broken_texts_are_errors_and_no_panics() {
    for text in [
        "a: [",
        "a: b: c",
        "kind: Service\napiVersion: v1\nmetadata: 5",
        "kind: Service\nkind: Service",
        "kind: List\nitems: {}",
        "[1, 2",
        "just words",
        "&a [*a, *a]",
    ] {
        assert!(objects(text).is_err(), "{text:?}");
    }
}

#[test]
fn a_bomb_of_aliases_is_refused() {
    let row = |level: u32| {
        let before =
            level.checked_sub(1).map_or_else(|| "x".to_owned(), |before| format!("*a{before}"));
        format!("a{level}: &a{level} [{}]\n", vec![before; 10].join(", "))
    };
    let mut text: String = (0..12).map(row).collect();
    text.push_str("kind: Service\napiVersion: v1\nmetadata: { name: a }\n");
    assert!(objects(&text).is_err());
}

/// The form in which programs write a slice whose endpoints share their conditions.
#[test]
fn one_anchor_may_be_repeated_by_every_endpoint() {
    let head = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
                metadata: { name: a, labels: { kubernetes.io/service-name: a } }\nendpoints:\n\
                - { addresses: [10.0.0.1], conditions: &id001 { ready: true } }\n";
    let one = "- { addresses: [10.0.0.2], conditions: *id001 }\n";
    let text = [head, &one.repeat(100_000)].concat();
    assert_eq!(objects(&text).expect("readable").len(), 1);
}

#[test]
fn documents_of_other_kinds_are_reported_with_their_line() {
    let text = "# one\n---\napiVersion: v1\nkind: Servcie\n---\nkind: Node\n---\nspec: {}\n";
    let others = contents(text).expect("readable").others;
    let reported: Vec<_> = others.iter().map(|it| (it.line, &*it.api_version, &*it.kind)).collect();
    assert_eq!(reported, [(2, "v1", "Servcie"), (7, "", "")]);
}
