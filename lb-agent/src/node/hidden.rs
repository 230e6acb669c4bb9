//! Interfaces of pods that no program of this host serves.
//!
//! They are macvlan, ipvlan and VLANs over an interface of the host, network cards that were moved to a pod, and
//! netkits in mode l3. They are visible, or recognizable as a pod's, only inside the namespaces of pods, and are only
//! reported. Beside a veth they are a second network of the pod: then they matter only if the pod's route to a Service
//! leads through them.

pub(super) mod device;
mod inside;
mod look;
mod routes;

use std::collections::BTreeSet;

use ipnet::IpNet;

pub use self::device::{Hidden, Reason};
pub(super) use self::look::find;
use self::routes::PodRoutes;
use super::view::NetnsView;

/// Returns the problems for operators. `networks`, those of Services, is only called if routes matter.
pub fn problems(view: &NetnsView, networks: impl FnOnce() -> BTreeSet<IpNet>) -> Vec<String> {
    let has_routes = view.hidden.iter().any(|hidden| hidden.pod_routes.is_some());
    let networks = if has_routes { networks() } else { BTreeSet::new() };
    let leads = |hidden: &&Hidden| {
        let leads_to = |routes: &PodRoutes| networks.iter().any(|network| routes.lead_to(network));
        hidden.pod_routes.as_ref().is_none_or(leads_to)
    };
    let problem = |hidden: &Hidden| {
        let Hidden { name, namespace, reason, pod_routes } = hidden;
        let name_of =
            |index: u32| view.links.get(&index).map_or("an interface that is gone", |it| &it.name);
        let kind = match *reason {
            Reason::Over(lower) => format!("a macvlan, ipvlan or VLAN over {}", name_of(lower)),
            Reason::Card => "a network card that was moved there".to_owned(),
            Reason::NetkitL3(end) => {
                return format!(
                    "interface {name} of pod network namespace {namespace} is a netkit in mode l3: the programs of \
                     this host do not serve its other end {}, so Services do not work there; use mode l2",
                    name_of(end)
                );
            }
        };
        let (cause, remedy) = match pod_routes {
            None => ("its packets bypass", "give the pod a veth or a netkit in mode l2"),
            Some(_) => (
                "the pod's route to Services uses it and bypasses",
                "give the pod a route to them through its veth",
            ),
        };
        format!(
            "interface {name} of pod network namespace {namespace} is {kind}: {cause} the programs of this host, so \
             Services do not work there; {remedy}"
        )
    };
    view.hidden.iter().filter(leads).map(problem).collect()
}

#[cfg(test)]
mod tests {
    use super::inside::hidden;
    use super::*;
    use crate::node::view::{Link, LinkKind};

    const OURS: i32 = 7;

    fn link(name: &str, kind: LinkKind, elsewhere: Option<i32>) -> Link {
        let is_card = kind == LinkKind::Other;
        let peer = elsewhere.map(|_| 1);
        Link { name: name.into(), kind, peer, elsewhere, is_card, is_up: true, ..Link::default() }
    }

    fn problems_of(links: Vec<Link>) -> Vec<String> {
        problems_by(links, &[])
    }

    /// Returns the problems with these routes, each to a network through the interface of this index. Services have
    /// 10.96.0.0/12.
    fn problems_by(links: Vec<Link>, routes: &[(&str, u32)]) -> Vec<String> {
        let inside = NetnsView { links: (1..).zip(links).collect(), ..NetnsView::default() };
        let route = |(to, device): &(&str, u32)| routes::PodRoute {
            to: to.parse().expect("a network"),
            metric: 0,
            devices: vec![*device],
        };
        let routes: Vec<_> = routes.iter().map(route).collect();
        let hidden = hidden(&inside, OURS, "blue", &routes);
        let services = || [net("10.96.0.0/12")].into();
        problems(&NetnsView { hidden, ..NetnsView::default() }, services)
    }

    fn net(text: &str) -> IpNet {
        text.parse().expect("a network")
    }

    #[test]
    fn card_that_was_moved_to_a_pod_is_named() {
        let lo = link("lo", LinkKind::Loopback, None);
        let problems = problems_of(vec![lo, link("net1", LinkKind::Other, None)]);
        let [problems] = problems.as_slice() else { panic!("{problems:?}") };
        let start =
            "interface net1 of pod network namespace blue is a network card that was moved there";
        assert!(problems.starts_with(start), "{problems}");
    }

    #[test]
    fn card_beside_a_veth_is_a_second_network() {
        let veth = link("eth0", LinkKind::Veth, Some(OURS));
        assert!(problems_of(vec![veth, link("net1", LinkKind::Other, None)]).is_empty());
        // That veth leads to another namespace than that of the agent.
        let veth = link("eth0", LinkKind::Veth, Some(OURS + 1));
        assert_eq!(problems_of(vec![veth, link("net1", LinkKind::Other, None)]).len(), 1);
    }

    #[test]
    fn netkit_in_mode_l3_is_named_and_serves_no_card_beside_it() {
        let netkit = || link("eth0", LinkKind::Netkit, Some(OURS));
        let problems = problems_of(vec![netkit(), link("net1", LinkKind::Other, None)]);
        let [first, second] = problems.as_slice() else { panic!("{problems:?}") };
        assert!(first.contains("blue is a netkit in mode l3: "), "{first}");
        assert!(first.ends_with("; use mode l2"), "{first}");
        assert!(second.contains("is a network card"), "{second}");
        let inside = NetnsView { links: [(1, netkit())].into(), ..NetnsView::default() };
        assert!(hidden(&inside, OURS + 1, "blue", &[]).is_empty(), "its other end is not here");
    }

    #[test]
    fn macvlan_beside_a_veth_is_named_if_the_route_to_services_leads_by_it() {
        let links = || {
            let veth = link("eth0", LinkKind::Veth, Some(OURS));
            vec![veth, link("net1", LinkKind::Over, Some(OURS))]
        };
        let (veth, macvlan) = (1, 2);
        let default = ("0.0.0.0/0", veth);
        assert!(problems_by(links(), &[default, ("172.30.0.0/24", macvlan)]).is_empty());
        let private = ("10.0.0.0/8", macvlan);
        let problems = problems_by(links(), &[default, private]);
        let [problems] = problems.as_slice() else { panic!("{problems:?}") };
        assert!(
            problems.ends_with("; give the pod a route to them through its veth"),
            "{problems}"
        );
        assert!(problems_by(links(), &[default, private, ("10.96.0.0/12", veth)]).is_empty());
        assert_eq!(problems_by(links(), &[default, ("10.96.0.0/16", macvlan)]).len(), 1, "a part");
        assert_eq!(problems_by(links(), &[("0.0.0.0/0", macvlan)]).len(), 1, "by default");
    }

    #[test]
    fn only_interfaces_over_those_of_the_host_are_named() {
        let over = |elsewhere| link("net1", LinkKind::Over, elsewhere);
        let ours = problems_of(vec![over(Some(OURS))]);
        assert_eq!(ours.len(), 1);
        assert!(ours[0].contains("is a macvlan, ipvlan or VLAN over"), "{ours:?}");
        assert!(problems_of(vec![over(Some(OURS + 1))]).is_empty());
        assert!(problems_of(vec![over(None)]).is_empty());
    }
}
