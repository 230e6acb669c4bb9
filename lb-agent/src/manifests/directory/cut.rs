//! Reduces the objects of a file to the fields in use, after setting the defaults that the API server would set.

use std::fmt;

use ipnet::IpNet;

use crate::manifests::parse::Object;
use crate::plan::ServiceName;
use crate::snapshot::object::Metadata;
use crate::snapshot::{
    Findings, Interner, NodeSpec, SERVICE_NAME_LABEL, ServiceSpec, SliceName, SliceSpec,
    service_cidrs,
};

/// The kind and name of an object, by which the directory tells objects apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ObjectKey {
    Service(ServiceName),
    Slice(SliceName),
    Node(Box<str>),
    ServiceCidr(Box<str>),
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(name) => write!(f, "Service {name}"),
            Self::Slice(slice) => write!(f, "EndpointSlice {}/{}", slice.namespace, slice.name),
            Self::Node(name) => write!(f, "Node {name}"),
            Self::ServiceCidr(name) => write!(f, "ServiceCIDR {name}"),
        }
    }
}

/// An object reduced to the fields in use.
#[derive(Debug, Hash)]
pub(super) enum Spec {
    Service(Box<ServiceSpec>),
    Slice(Box<SliceSpec>),
    Node(Box<NodeSpec>),
    ServiceCidr(Box<str>, Vec<IpNet>),
}

/// Reduces one object. `None` if it has no name, is the object of a different node, or is a slice that no proxy serves.
pub(super) fn cut(
    object: Object,
    node: &str,
    interner: &mut Interner,
    findings: &mut Findings,
) -> Option<(ObjectKey, Spec)> {
    let kind = object.kind();
    let found = match object {
        Object::Service(mut object) => {
            in_a_namespace(&mut object.metadata);
            let spec = ServiceSpec::of(&object);
            spec.map(|spec| (ObjectKey::Service(spec.name.clone()), Spec::Service(Box::new(spec))))
        }
        // The API server would not list it (contract 1.1).
        Object::Slice(object) if object.metadata.labels.headless.is_some() => return None,
        Object::Slice(mut object) => {
            in_a_namespace(&mut object.metadata);
            for port in &mut object.ports {
                // The API server stores an unset port name as an empty one, which matches the unnamed port of a
                // Service.
                port.name.get_or_insert_default();
            }
            let slice = SliceSpec::of(&object, interner);
            slice.map(|slice| (ObjectKey::Slice(slice.name.clone()), Spec::Slice(Box::new(slice))))
        }
        Object::Node(object) => match NodeSpec::of(&object) {
            Some(other) if *other.name != *node => return None,
            spec => {
                spec.map(|spec| (ObjectKey::Node(spec.name.clone()), Spec::Node(Box::new(spec))))
            }
        },
        Object::ServiceCidr(object) => {
            let (cidrs, wrong) = service_cidrs(&object);
            for wrong in wrong {
                findings.wrong(
                    format_args!("{} {}", wrong.object, wrong.field),
                    wrong.problem,
                    "correct it",
                );
            }
            let name = Some(object.metadata.name).filter(|name| !name.is_empty());
            let name = name.map(Box::<str>::from);
            name.map(|name| (ObjectKey::ServiceCidr(name.clone()), Spec::ServiceCidr(name, cidrs)))
        }
    };
    match &found {
        None => findings.wrong(
            format_args!("{kind} metadata.name"),
            "is missing; the object is left out",
            "give it a name",
        ),
        Some((key, Spec::Slice(slice))) if slice.service.is_none() => findings.wrong(
            format_args!("{key} metadata.labels"),
            format_args!("lack {SERVICE_NAME_LABEL}; the slice is ignored"),
            "set the label to the name of the Service",
        ),
        Some(_) => {}
    }
    found
}

fn in_a_namespace(meta: &mut Metadata) {
    if meta.namespace.is_empty() {
        "default".clone_into(&mut meta.namespace);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::parse::contents;

    /// Contract 1.3: both have the name of the port as their key, which an API server sets where it is missing.
    #[test]
    fn missing_port_name_equals_the_empty_name() {
        for name in ["", "name: null, ", "name: ~, ", "name: \"\", "] {
            let text = format!(
                "{{apiVersion: v1, kind: Service, metadata: {{name: web}}, \
                 spec: {{clusterIP: 10.96.0.1, ports: [{{{name}port: 80}}]}}}}\n---\n\
                 {{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
                 metadata: {{name: web-1, labels: {{{SERVICE_NAME_LABEL}: web}}}}, \
                 endpoints: [{{addresses: [10.0.0.1]}}], ports: [{{{name}port: 8080}}]}}"
            );
            let mut findings = Findings::of("file", "", "a.yaml");
            let mut ports = Vec::new();
            for object in contents(&text).unwrap().objects {
                match cut(object, "here", &mut Interner::default(), &mut findings) {
                    Some((_, Spec::Service(spec))) => {
                        ports.extend(
                            spec.ports.iter().map(|port| (port.name.to_string(), port.port)),
                        );
                    }
                    Some((_, Spec::Slice(slice))) => {
                        ports.extend(
                            slice.ports.iter().map(|port| (port.name.to_string(), port.port)),
                        );
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(ports, [(String::new(), 80), (String::new(), 8080)], "{name}");
            assert!(findings.into_list().is_empty(), "{name}");
        }
    }
}
