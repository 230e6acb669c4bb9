//! Pods: declarations that no kubelet starts. The rules cover only the fields that matter for Services.

use serde_json::{Map, Value, json};

use crate::check;
use crate::field::Cause;

/// Fills in the defaults that readers of a Pod rely on.
pub(crate) fn defaults(value: &mut Value) {
    let Some(fields) = value.as_object_mut() else { return };
    if let Some(Value::Object(spec)) = fields.get_mut("spec") {
        let usual = [
            ("restartPolicy", json!("Always")),
            ("dnsPolicy", json!("ClusterFirst")),
            ("schedulerName", json!("default-scheduler")),
            ("terminationGracePeriodSeconds", json!(30)),
            ("securityContext", json!({})),
            ("enableServiceLinks", json!(true)),
        ];
        for (name, value) in usual {
            spec.entry(name).or_insert(value);
        }
        for list in ["containers", "initContainers"] {
            let containers = spec.get_mut(list).and_then(Value::as_array_mut);
            containers.into_iter().flatten().filter_map(Value::as_object_mut).for_each(container);
        }
    }
    let status = fields.entry("status").or_insert_with(|| Map::new().into());
    if let Some(status) = status.as_object_mut() {
        status.entry("phase").or_insert_with(|| "Pending".into());
    }
}

fn container(fields: &mut Map<String, Value>) {
    let image = fields.get("image").and_then(Value::as_str).unwrap_or_default();
    // Upstream's default for the pull policy depends on the tag: images without one may change.
    let is_latest =
        image.rsplit('/').next().is_none_or(|it| !it.contains(':') || it.ends_with(":latest"));
    let usual = [
        ("imagePullPolicy", json!(if is_latest { "Always" } else { "IfNotPresent" })),
        ("terminationMessagePath", json!("/dev/termination-log")),
        ("terminationMessagePolicy", json!("File")),
    ];
    for (name, value) in usual {
        fields.entry(name).or_insert(value);
    }
    let ports = fields.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        port.entry("protocol").or_insert_with(|| "TCP".into());
    }
    for name in ["readinessProbe", "livenessProbe", "startupProbe"] {
        if let Some(Value::Object(probe)) = fields.get_mut(name) {
            let usual = [
                ("timeoutSeconds", 1),
                ("periodSeconds", 10),
                ("successThreshold", 1),
                ("failureThreshold", 3),
            ];
            for (name, value) in usual {
                probe.entry(name).or_insert_with(|| value.into());
            }
        }
    }
}

/// Checks that a Pod has named containers with an image. Upstream's other rules concern running them.
pub(crate) fn validate(value: &Value, _old: Option<&Value>) -> Vec<Cause> {
    let containers = value.pointer("/spec/containers").and_then(Value::as_array);
    let containers = containers.map_or(&[][..], Vec::as_slice);
    if containers.is_empty() {
        return vec![Cause::required("spec.containers", "")];
    }
    let mut causes = Vec::new();
    for (index, container) in containers.iter().enumerate() {
        let text = |it: &Value, name: &str| {
            it.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let field = format!("spec.containers[{index}]");
        let (name, image) = (text(container, "name"), text(container, "image"));
        if name.is_empty() {
            causes.push(Cause::required(format!("{field}.name"), ""));
        } else {
            let faults = check::dns_label(&name);
            let field = format!("{field}.name");
            causes
                .extend(faults.iter().map(|it| Cause::invalid(field.as_str(), name.as_str(), it)));
        }
        if containers.iter().take(index).any(|it| text(it, "name") == name) {
            causes.push(Cause::duplicate(format!("{field}.name"), name));
        }
        if image.is_empty() {
            causes.push(Cause::required(format!("{field}.image"), ""));
        }
    }
    causes
}
