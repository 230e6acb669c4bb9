//! Derives from a plan: the members of a set, the number of lines, claims, flags and rows.

use std::collections::{BTreeMap, BTreeSet};

use lb_common::addr::{Endpoint, Ip, Port};
use lb_common::service::{Backend, Flags, Frontend, ServiceId};

use crate::plan::{EndpointPlan, FrontendKind, FrontendPlan, PortPlan};
use crate::reconcile::frontends::key;
use crate::reconcile::selection;

/// Frees the spare capacity of a plan's lists: it is kept as long as its service.
pub(super) fn lean(mut plan: PortPlan) -> PortPlan {
    plan.frontends.shrink_to_fit();
    plan.sources.shrink_to_fit();
    plan.endpoints.shrink_to_fit();
    plan
}

/// Returns the members of a set, sorted, so that every node builds the same table.
pub(super) fn members(plan: &PortPlan, is: fn(&EndpointPlan) -> bool) -> Vec<Endpoint> {
    let members = plan.endpoints.iter().filter(|endpoint| is(endpoint)).map(at);
    members.collect::<BTreeSet<Endpoint>>().into_iter().collect()
}

/// Returns how many lines the sets of a plan need.
pub(super) fn lines(plan: &PortPlan) -> u32 {
    let cluster = members(plan, |endpoint| endpoint.cluster);
    let local = members(plan, |endpoint| endpoint.local);
    let of = |members: &[Endpoint]| selection::shape(0, members.len() as u32).lines();
    of(&cluster) + if local == cluster { 0 } else { of(&local) }
}

/// Returns the frontends of a plan, each once.
pub(super) fn claims(plan: &PortPlan) -> BTreeSet<(Frontend, FrontendKind)> {
    let mut first: BTreeMap<Frontend, &FrontendPlan> = BTreeMap::new();
    for frontend in &plan.frontends {
        let place = first.entry(key(frontend, plan.key.protocol)).or_insert(frontend);
        if rank(frontend) < rank(place) {
            *place = frontend;
        }
    }
    first.into_iter().map(|(frontend, plan)| (frontend, plan.kind)).collect()
}

/// Returns the rank of two plans for one frontend of a port: a `ClusterIP` first, then one with source ranges.
pub(super) const fn rank(plan: &FrontendPlan) -> (bool, bool, FrontendKind) {
    (!matches!(plan.kind, FrontendKind::ClusterIp), !plan.checks_sources, plan.kind)
}

pub(super) fn flags(plan: &PortPlan, frontend: &FrontendPlan) -> Flags {
    let kind = match frontend.kind {
        FrontendKind::ClusterIp => Flags(0),
        FrontendKind::ExternalIp | FrontendKind::LoadBalancer => Flags::EXTERNAL,
        FrontendKind::NodePort => Flags::EXTERNAL.with(Flags::NODE_PORT),
    };
    let when = |is: bool, flag: Flags| if is { flag } else { Flags(0) };
    kind.with(when(frontend.local_policy, Flags::LOCAL_POLICY))
        .with(when(frontend.checks_sources && !plan.sources.is_empty(), Flags::SOURCE_RANGES))
        .with(when(plan.anywhere, Flags::ANYWHERE))
}

pub(super) fn at(endpoint: &EndpointPlan) -> Endpoint {
    Endpoint::new(Ip::from(endpoint.ip), Port::new(endpoint.port))
}

pub(super) fn row(endpoint: &EndpointPlan, id: ServiceId) -> Backend {
    let when = |is: bool, flag: u16| if is { flag } else { 0 };
    let at = at(endpoint);
    Backend {
        ip: at.ip,
        port: at.port,
        flags: when(endpoint.on_this_node, Backend::LOCAL)
            | when(endpoint.cluster, Backend::IN_CLUSTER_SET)
            | when(endpoint.local, Backend::IN_LOCAL_SET),
        epoch: 0,
        service: id,
        pad: 0,
    }
}
