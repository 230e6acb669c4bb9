//! The served resources: names, verbs, and the fields of field selectors.

use serde_json::Value;

/// A resource of an API group.
#[derive(Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "a row of a table")]
pub struct Kind {
    /// API group, empty for the core.
    pub group: &'static str,
    /// Plural name, as in paths.
    pub resource: &'static str,
    /// Name of the kind, in the singular.
    pub kind: &'static str,
    /// Name of the type in the table of fields.
    pub(crate) type_name: &'static str,
    /// Whether its objects belong to namespaces.
    pub is_namespaced: bool,
    /// Short names that kubectl accepts.
    pub short: &'static [&'static str],
    /// Groups of resources that kubectl lists together.
    pub categories: &'static [&'static str],
    /// Whether `status` is a subresource of its own.
    pub has_status: bool,
    /// Whether clients may write it.
    pub is_writable: bool,
    /// Whether a PUT creates a missing object.
    pub is_created_by_put: bool,
    /// JSON pointers of the fields for field selectors, besides name and namespace.
    fields: &'static [&'static str],
}

const fn kind(
    group: &'static str,
    resource: &'static str,
    kind: &'static str,
    type_name: &'static str,
) -> Kind {
    Kind {
        group,
        resource,
        kind,
        type_name,
        is_namespaced: true,
        short: &[],
        categories: &[],
        has_status: false,
        is_writable: true,
        is_created_by_put: false,
        fields: &[],
    }
}

const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

/// All resources. The two kinds of Events share their stored objects.
pub static KINDS: [Kind; 10] = [
    Kind {
        short: &["ev"],
        is_created_by_put: true,
        fields: EVENT_FIELDS,
        ..kind("", "events", "Event", "core.Event")
    },
    Kind {
        is_namespaced: false,
        short: &["ns"],
        has_status: true,
        fields: &["status.phase"],
        ..kind("", "namespaces", "Namespace", "core.Namespace")
    },
    Kind {
        is_namespaced: false,
        short: &["no"],
        has_status: true,
        fields: &["spec.unschedulable"],
        ..kind("", "nodes", "Node", "core.Node")
    },
    Kind {
        short: &["po"],
        categories: &["all"],
        has_status: true,
        fields: &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        ..kind("", "pods", "Pod", "core.Pod")
    },
    Kind {
        short: &["svc"],
        categories: &["all"],
        has_status: true,
        is_created_by_put: true,
        fields: &["spec.clusterIP", "spec.type"],
        ..kind("", "services", "Service", "core.Service")
    },
    Kind {
        is_created_by_put: true,
        ..kind("coordination.k8s.io", "leases", "Lease", "coordination.Lease")
    },
    kind("discovery.k8s.io", "endpointslices", "EndpointSlice", "discovery.EndpointSlice"),
    Kind {
        short: &["ev"],
        is_created_by_put: true,
        fields: EVENT_FIELDS,
        ..kind("events.k8s.io", "events", "Event", "events.Event")
    },
    Kind {
        is_namespaced: false,
        is_writable: false,
        short: &["ip"],
        fields: &[
            "spec.parentRef.group",
            "spec.parentRef.resource",
            "spec.parentRef.namespace",
            "spec.parentRef.name",
        ],
        ..kind("networking.k8s.io", "ipaddresses", "IPAddress", "networking.IPAddress")
    },
    Kind {
        is_namespaced: false,
        is_writable: false,
        has_status: true,
        ..kind("networking.k8s.io", "servicecidrs", "ServiceCIDR", "networking.ServiceCIDR")
    },
];

impl Kind {
    /// Returns a resource by its group and name in paths.
    pub fn find(group: &str, resource: &str) -> Option<&'static Self> {
        KINDS.iter().find(|it| it.group == group && it.resource == resource)
    }

    /// Returns the kind whose form objects of a resource are stored in.
    pub(crate) fn kept(resource: &str) -> Option<&'static Self> {
        KINDS.iter().find(|it| it.resource == resource)
    }

    /// Reports whether a request may delete all its objects. Upstream refuses this for namespaces.
    pub(crate) fn has_collection_delete(&self) -> bool {
        self.is_writable && self.resource != "namespaces"
    }

    /// Returns group and version in the form of `apiVersion`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { "v1".into() } else { format!("{}/v1", self.group) }
    }

    /// Returns the resource with its group, as in error messages.
    pub fn qualified(&self) -> String {
        qualified(self.resource, self.group)
    }

    /// Returns the kind with its group, as in error messages.
    pub fn qualified_kind(&self) -> String {
        qualified(self.kind, self.group)
    }

    /// Reports whether field selectors may use a field.
    pub(crate) fn can_select(&self, field: &str) -> bool {
        let field = self.kept_field(field);
        let is_namespace = field == "metadata.namespace" && self.is_namespaced;
        field == "metadata.name" || is_namespace || self.fields.contains(&field)
    }

    /// Returns the name of a field in the stored form.
    pub(crate) fn kept_field<'a>(&self, field: &'a str) -> &'a str {
        if self.group != "events.k8s.io" {
            return field;
        }
        let names = EVENT_FIELDS.iter().map(|it| (it.replace("involvedObject", "regarding"), *it));
        names.into_iter().find(|it| it.0 == field).map_or(field, |it| it.1)
    }

    /// Returns the fields for field selectors with their values; zero values are written as Go prints them.
    pub(crate) fn selectable(&self, value: &Value) -> Vec<(&'static str, String)> {
        self.fields.iter().map(|field| (*field, field_text(field, value))).collect()
    }
}

fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

fn field_text(field: &str, value: &Value) -> String {
    let found = match field {
        "source" => value.pointer("/source/component"),
        "reportingComponent" => value.pointer("/reportingComponent"),
        path => value.pointer(&format!("/{}", path.replace('.', "/"))),
    };
    match found {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(flag)) => flag.to_string(),
        // A missing boolean is false, and selectors compare texts.
        _ if matches!(field, "spec.unschedulable" | "spec.hostNetwork") => "false".into(),
        _ => String::new(),
    }
}
