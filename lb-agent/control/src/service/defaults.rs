//! Defaults for the fields that a Service leaves out.

use super::model::{AffinityConfig, ClientIp, Service, Target};

/// Default of `sessionAffinityConfig.clientIP.timeoutSeconds`, three hours.
const AFFINITY: i32 = 10_800;

/// Fills in defaults. None of them depends on bookings.
pub(crate) fn set(service: &mut Service) {
    let is_accessible = {
        let spec = &mut service.spec;
        fill(&mut spec.session_affinity, "None");
        fill(&mut spec.kind, "ClusterIP");
        match spec.session_affinity.as_str() {
            // Upstream drops a configuration that has no effect.
            "None" => spec.session_affinity_config = None,
            "ClientIP" => {
                let given = spec.session_affinity_config.as_ref();
                let client = given.and_then(|it| it.client_ip.as_ref());
                if client.and_then(|it| it.timeout_seconds).is_none() {
                    let client_ip = Some(ClientIp { timeout_seconds: Some(AFFINITY) });
                    spec.session_affinity_config = Some(AffinityConfig { client_ip });
                }
            }
            _ => {}
        }
        for port in &mut spec.ports {
            fill(&mut port.protocol, "TCP");
            if matches!(&port.target_port, Target::Number(0))
                || matches!(&port.target_port, Target::Name(name) if name.is_empty())
            {
                port.target_port = Target::Number(port.port);
            }
        }
        service.is_externally_accessible()
    };
    let is_load_balancer = service.is_load_balancer();
    let spec = &mut service.spec;
    if is_accessible {
        fill(&mut spec.external_traffic_policy, "Cluster");
    }
    if spec.internal_traffic_policy.is_none()
        && matches!(spec.kind.as_str(), "ClusterIP" | "NodePort" | "LoadBalancer")
    {
        spec.internal_traffic_policy = Some("Cluster".into());
    }
    if is_load_balancer {
        spec.allocate_load_balancer_node_ports.get_or_insert(true);
        // Upstream's default: without a mode, the address is served by the node.
        for ingress in &mut service.status.load_balancer.ingress {
            if !ingress.ip.is_empty() {
                ingress.ip_mode.get_or_insert_with(|| "VIP".into());
            }
        }
    }
}

fn fill(field: &mut String, value: &str) {
    if field.is_empty() {
        value.clone_into(field);
    }
}
