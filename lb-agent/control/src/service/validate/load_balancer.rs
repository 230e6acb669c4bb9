//! Validation of the fields that only load balancers have.

use crate::check;
use crate::field::Cause;
use crate::service::annotations::SOURCE_RANGES;
use crate::service::model::Service;

const ONLY_BALANCER: &str = "may only be used when `type` is 'LoadBalancer'";

/// Checks source ranges, node ports and class.
pub(super) fn fields(new: &Service, old: Option<&Service>) -> Vec<Cause> {
    let mut causes = source_ranges(new, old);
    if new.spec.allocate_load_balancer_node_ports.is_some() && !new.is_load_balancer() {
        causes.push(Cause::forbidden("spec.allocateLoadBalancerNodePorts", ONLY_BALANCER));
    }
    causes.extend(class(new));
    causes
}

fn source_ranges(new: &Service, old: Option<&Service>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let trimmed = |it: &Service| -> Vec<String> {
        it.spec.load_balancer_source_ranges.iter().map(|it| it.trim().to_owned()).collect()
    };
    let given = trimmed(new);
    if !given.is_empty() {
        // Upstream writes the field's name with a capital letter here.
        let field = "spec.LoadBalancerSourceRanges";
        if !new.is_load_balancer() {
            causes.push(Cause::forbidden(field, ONLY_BALANCER));
        }
        let stored = old.map(trimmed).unwrap_or_default();
        let each = given.iter().enumerate();
        causes.extend(each.flat_map(|(i, it)| check::cidr(&format!("{field}[{i}]"), it, &stored)));
        return causes;
    }
    let Some(text) = new.metadata.annotations.get(SOURCE_RANGES) else { return causes };
    let field = format!("metadata.annotations[{SOURCE_RANGES}]");
    if !new.is_load_balancer() {
        causes.push(Cause::forbidden(field.as_str(), ONLY_BALANCER));
    }
    let before = old.and_then(|it| it.metadata.annotations.get(SOURCE_RANGES));
    if before != Some(text) && !text.trim().is_empty() {
        causes.extend(text.split(',').flat_map(|it| check::cidr(&field, it.trim(), &[])));
    }
    causes
}

/// Checks the load balancer class: valid only for type `LoadBalancer`.
pub(super) fn class(new: &Service) -> Vec<Cause> {
    let field = "spec.loadBalancerClass";
    let Some(name) = new.spec.load_balancer_class.as_deref() else { return Vec::new() };
    if !new.is_load_balancer() {
        return vec![Cause::forbidden(field, ONLY_BALANCER)];
    }
    let faults = check::label_key(name).into_iter();
    faults.map(|it| Cause::invalid(field, name, &it)).collect()
}
