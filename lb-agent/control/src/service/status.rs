//! Updates of the `status` subresource.

use super::defaults;
use super::model::{Ingress, Service};
use crate::field::Cause;
use crate::{check, meta};

/// Takes status and metadata from `new` and everything else from `old`, or returns the causes against them.
pub fn update_status(mut new: Service, old: &Service) -> Result<Service, Vec<Cause>> {
    defaults::set(&mut new);
    new.spec.clone_from(&old.spec);
    let mut causes = meta::validate(&new.metadata, true, meta::path_segment);
    causes.extend(meta::validate_update(&new.metadata, &old.metadata));
    causes.extend(ingress(&new, old));
    if causes.is_empty() { Ok(new) } else { Err(causes) }
}

fn ingress(new: &Service, old: &Service) -> Vec<Cause> {
    let field = "status.loadBalancer.ingress";
    let given = &new.status.load_balancer.ingress;
    if !new.is_load_balancer() && !given.is_empty() {
        let detail = "may only be used when `spec.type` is 'LoadBalancer'";
        return vec![Cause::forbidden(field, detail)];
    }
    // Forms that upstream refuses in new objects stay valid in stored ones.
    let stored = old.status.load_balancer.ingress.iter().map(|it| it.ip.clone());
    let stored: Vec<String> = stored.filter(|it| !it.is_empty()).collect();
    let each = given.iter().enumerate();
    each.flat_map(|(index, it)| one(&format!("{field}[{index}]"), it, &stored)).collect()
}

fn one(field: &str, ingress: &Ingress, stored: &[String]) -> Vec<Cause> {
    let mut causes = Vec::new();
    if !ingress.ip.is_empty() {
        causes.extend(check::legacy_ip(&format!("{field}.ip"), &ingress.ip, stored));
    }
    let mode = format!("{field}.ipMode");
    match (ingress.ip.as_str(), ingress.ip_mode.as_deref()) {
        ("", None) | (_, Some("VIP" | "Proxy"))
            if !ingress.ip.is_empty() || ingress.ip_mode.is_none() => {}
        (_, None) => causes.push(Cause::required(mode, "must be specified when `ip` is set")),
        ("", Some(_)) => {
            causes.push(Cause::forbidden(mode, "may not be specified when `ip` is not set"));
        }
        (_, Some(other)) => causes.push(Cause::not_supported(mode, other, &["Proxy", "VIP"])),
    }
    if !ingress.hostname.is_empty() {
        let (field, name) = (format!("{field}.hostname"), ingress.hostname.as_str());
        let faults = check::dns_subdomain(name).into_iter();
        causes.extend(faults.map(|it| Cause::invalid(field.as_str(), name, &it)));
        if check::sloppy(name).is_some() {
            causes.push(Cause::invalid(field, name, "must be a DNS name, not an IP address"));
        }
    }
    causes
}
