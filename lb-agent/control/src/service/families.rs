//! The IP families of a Service: from its policy, its addresses, the families it lists, and the ranges of the cluster.

use super::model::{PREFER, REQUIRE, SINGLE, Service};
use super::ranges::Ranges;
use super::validate::cluster_ips;
use crate::check;
use crate::family::Family;
use crate::field::{Cause, list};

/// Fills in policy and families, or returns the causes against them.
pub(crate) fn fill_in(
    new: &mut Service,
    old: Option<&Service>,
    ranges: &Ranges,
) -> Result<(), Vec<Cause>> {
    if new.is_external_name() || old.is_some_and(|old| prefers_as_before(new, old)) {
        return Ok(());
    }
    // Headless without a selector: any client may write endpoints of both families, whatever the ranges.
    let is_open = new.spec.cluster_ip == "None" && !new.has_selector();
    if new.spec.ip_family_policy.is_none() {
        let before = old.and_then(|it| it.spec.ip_family_policy.clone());
        let usual = if is_open { REQUIRE } else { SINGLE };
        new.spec.ip_family_policy = Some(before.unwrap_or_else(|| usual.into()));
    }
    some(cluster_ips(new, old))?;
    let mut causes = old.map_or_else(Vec::new, |old| shrink(new, old));
    causes.extend(single(new));
    causes.extend(from_addresses(new, ranges));
    some(causes)?;
    if is_open {
        both_where_allowed(new, ranges.first().family(), true);
        return Ok(());
    }
    some(not_configured(new, ranges))?;
    both_where_allowed(new, ranges.first().family(), ranges.is_dual());
    Ok(())
}

fn some(causes: Vec<Cause>) -> Result<(), Vec<Cause>> {
    if causes.is_empty() { Ok(()) } else { Err(causes) }
}

/// Reports whether a Service that prefers two families and got one keeps it, because the update changes other fields
/// only (upstream: `isMatchingPreferDualStackClusterIPFields`).
pub(crate) fn prefers_as_before(new: &Service, old: &Service) -> bool {
    let prefers = |it: &Service| it.policy() == PREFER;
    let has_address = ["ClusterIP", "NodePort", "LoadBalancer"].contains(&new.spec.kind.as_str());
    old.spec.kind == new.spec.kind
        && has_address
        && prefers(new)
        && (prefers(old) || old.spec.ip_family_policy.is_none())
        && old.spec.cluster_ips == new.spec.cluster_ips
        && old.spec.ip_families == new.spec.ip_families
}

/// Drops the second family if the policy becomes `SingleStack`. Fewer families under another policy are an error.
fn shrink(new: &mut Service, old: &Service) -> Vec<Cause> {
    let is_single = new.policy() == SINGLE;
    let policy = new.spec.ip_family_policy.clone();
    let (now, before) = (&mut new.spec, &old.spec);
    if is_single {
        // A list that the client changed stays, so that validation compares it with the policy.
        if now.cluster_ips == before.cluster_ips {
            now.cluster_ips.truncate(1);
        }
        if now.ip_families == before.ip_families {
            now.ip_families.truncate(1);
        }
        return Vec::new();
    }
    let reduced = |now: &[String], before: &[String]| !now.is_empty() && now.len() < before.len();
    let lost = [
        (reduced(&now.cluster_ips, &before.cluster_ips), "cluster IP"),
        (reduced(&now.ip_families, &before.ip_families), "IP family"),
    ];
    let lost = lost.into_iter().filter(|it| it.0);
    lost.map(|(_, what)| {
        let detail = format!("must be 'SingleStack' to release the secondary {what}");
        Cause::invalid("spec.ipFamilyPolicy", policy.clone(), &detail)
    })
    .collect()
}

fn single(new: &Service) -> Vec<Cause> {
    let counts =
        [(new.spec.cluster_ips.len(), "cluster IPs"), (new.spec.ip_families.len(), "IP families")];
    let two = counts.into_iter().filter(|it| new.policy() == SINGLE && it.0 == 2);
    two.map(|(_, what)| {
        let detail = format!(
            "must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"
        );
        Cause::invalid("spec.ipFamilyPolicy", SINGLE, &detail)
    })
    .collect()
}

fn from_addresses(new: &mut Service, ranges: &Ranges) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, address) in new.spec.cluster_ips.clone().iter().enumerate() {
        if address == "None" {
            break;
        }
        let family = check::family(address);
        // The client named this family; validation compares both later.
        if index < new.spec.ip_families.len() {
            continue;
        }
        if ranges.of(family).is_some() {
            new.spec.ip_families.push(family.word().into());
        } else {
            let field = format!("spec.clusterIPs[{index}]");
            let detail = format!("{family} is not configured on this cluster");
            causes.push(Cause::invalid(field, list(&new.spec.cluster_ips), &detail));
        }
    }
    causes
}

fn not_configured(new: &Service, ranges: &Ranges) -> Vec<Cause> {
    let mut causes = Vec::new();
    if new.policy() == REQUIRE && !ranges.is_dual() {
        let detail = "this cluster is not configured for dual-stack services";
        causes.push(Cause::invalid("spec.ipFamilyPolicy", REQUIRE, detail));
    }
    for (index, family) in new.spec.ip_families.iter().enumerate() {
        if Family::of(family).and_then(|it| ranges.of(it)).is_none() {
            let field = format!("spec.ipFamilies[{index}]");
            causes.push(Cause::invalid(field, family.as_str(), "not configured on this cluster"));
        }
    }
    causes
}

fn both_where_allowed(new: &mut Service, first: Family, is_dual: bool) {
    let is_single = new.policy() == SINGLE;
    let families = &mut new.spec.ip_families;
    if families.is_empty() {
        families.push(first.word().into());
    }
    // A dual-stack policy takes the second family if the cluster has it.
    if let ([only], false, true) = (families.as_slice(), is_single, is_dual)
        && let Some(family) = Family::of(only)
    {
        families.push(family.other().word().into());
    }
}
