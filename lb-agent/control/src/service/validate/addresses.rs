//! Validation of cluster addresses with their families, and of external addresses.

use crate::check;
use crate::family::Family;
use crate::field::{Cause, list};
use crate::service::model::{PREFER, REQUIRE, SINGLE, Service};

const FIELD: &str = "spec.clusterIPs";

/// Checks addresses, families and policy, each and together.
pub(crate) fn cluster_ips(new: &Service, old: Option<&Service>) -> Vec<Cause> {
    if new.is_external_name() {
        return Vec::new();
    }
    let spec = &new.spec;
    let all = || list(&spec.cluster_ips);
    let mut causes = Vec::new();
    match (spec.cluster_ip.as_str(), spec.cluster_ips.first()) {
        ("", Some(_)) => {
            let detail = "must be empty when `clusterIP` is not specified";
            causes.push(Cause::invalid(FIELD, all(), detail));
        }
        ("", None) => {}
        (_, None) => causes.push(Cause::required(FIELD, "")),
        (one, Some(first)) if one != first => {
            causes.push(Cause::invalid(FIELD, all(), "first value must match `clusterIP`"));
        }
        (_, Some(_)) => {}
    }
    causes.extend(families(new));
    let before = causes.len();
    causes.extend(each(new, old));
    // Checks across addresses need valid ones: they would only repeat the fault in other words.
    let has_invalid = causes.len() > before;
    if spec.cluster_ips.len() > 2 {
        causes.push(Cause::invalid(FIELD, all(), "may only hold up to 2 values"));
    }
    if !has_invalid {
        causes.extend(together(new));
    }
    causes
}

fn families(new: &Service) -> Vec<Cause> {
    let spec = &new.spec;
    let mut causes = Vec::new();
    for (index, family) in spec.ip_families.iter().enumerate() {
        let (field, value) = (format!("spec.ipFamilies[{index}]"), family.as_str());
        if Family::of(family).is_none() {
            causes.push(Cause::not_supported(field.as_str(), value, &["IPv4", "IPv6"]));
        }
        if spec.ip_families.iter().take(index).any(|it| it == family) {
            causes.push(Cause::duplicate(field, value));
        }
    }
    let policies = [PREFER, REQUIRE, SINGLE];
    if let Some(policy) = spec.ip_family_policy.as_deref()
        && !policies.contains(&policy)
    {
        causes.push(Cause::not_supported("spec.ipFamilyPolicy", policy, &policies));
    }
    causes
}

fn each(new: &Service, old: Option<&Service>) -> Vec<Cause> {
    let all = &new.spec.cluster_ips;
    let stored = old.map_or(&[][..], |it| &it.spec.cluster_ips);
    let mut causes = Vec::new();
    for (index, address) in all.iter().enumerate() {
        if index == 0 && address == "None" {
            if all.len() > 1 {
                let detail = "'None' must be the first and only value";
                causes.push(Cause::invalid(FIELD, list(all), detail));
            }
        } else {
            causes.extend(check::legacy_ip(&format!("{FIELD}[{index}]"), address, stored));
        }
    }
    causes
}

fn together(new: &Service) -> Vec<Cause> {
    let spec = &new.spec;
    let mut causes = Vec::new();
    let found: Vec<Family> = spec.cluster_ips.iter().map(|it| check::family(it)).collect();
    let has_both = [Family::V4, Family::V6].iter().all(|it| found.contains(it));
    if found.len() > 1 && !has_both {
        let detail = "may specify no more than one IP for each IP family";
        causes.push(Cause::invalid(FIELD, list(&spec.cluster_ips), detail));
    }
    // The families of a headless Service describe its endpoints; it has no address to compare.
    if new.is_headless() {
        return causes;
    }
    let pairs = spec.cluster_ips.iter().zip(&found).zip(&spec.ip_families).enumerate();
    for (index, ((address, found), wanted)) in pairs {
        if Family::of(wanted).is_some_and(|it| it != *found) {
            let detail =
                format!("expected an {wanted} value as indicated by `ipFamilies[{index}]`");
            let field = format!("{FIELD}[{index}]");
            causes.push(Cause::invalid(field, address.as_str(), &detail));
        }
    }
    causes
}

/// Checks `externalIPs`; values that are stored already stay valid.
pub(super) fn external(new: &Service, old: Option<&Service>) -> Vec<Cause> {
    let stored = old.map_or(&[][..], |it| &it.spec.external_ips);
    let each = new.spec.external_ips.iter().enumerate();
    each.flat_map(|(index, address)| {
        let field = format!("spec.externalIPs[{index}]");
        let causes = check::legacy_ip(&field, address, stored);
        if causes.is_empty() { check::endpoint_address(address, &field) } else { causes }
    })
    .collect()
}
