//! Routes to frontends for this host's packets, if no other route leads there.
//!
//! They are in a table of their own, which the kernel looks up last, and only for packets that this host sends. They
//! lead to `lo`, where the programs see the packets.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt as _;
use ipnet::IpNet;
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use rtnetlink::{Handle, IpVersion, RouteMessageBuilder};

use super::error::Error;
use super::loopback::INDEX;
use crate::node::identity::Primary;

/// Id of the routing table: "lb" in ASCII.
const TABLE: u32 = 0x6c62;
/// Priority of the rule: after the table `default`, whose rule has 32767.
const PRIORITY: u32 = 33_000;
const FAMILIES: [IpVersion; 2] = [IpVersion::V4, IpVersion::V6];

/// The networks of frontends, and the source addresses for packets to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrontendNetworks {
    /// Networks and single addresses of frontends.
    pub networks: BTreeSet<IpNet>,
    /// Indices of the external interfaces.
    pub interfaces: BTreeSet<u32>,
    /// The node's primary addresses. A family without one gets no routes.
    pub sources: Primary,
}

/// A route to frontends, in the table: network and source address.
type FrontendRoute = (IpNet, Option<IpAddr>);

/// Makes the table contain exactly the routes to these frontends.
pub(super) async fn set(handle: &Handle, frontends: &FrontendNetworks) -> Result<(), Error> {
    let source = |network: &IpNet| frontends.sources.of(network.addr().is_ipv4());
    let wanted: BTreeSet<FrontendRoute> = frontends
        .networks
        .iter()
        .filter_map(|network| Some((network.trunc(), Some(source(network)?))))
        .collect();
    let there = list(handle).await?;
    // A route that the kernel refuses takes no other one away. The first error is reported.
    let mut result = Ok(());
    let (replaced, stale) = old(&there, &wanted);
    // A route with another source has the same key as the one that replaces it.
    for network in replaced {
        result = result.and(delete(handle, network).await);
    }
    for (network, source) in wanted.difference(&there) {
        let added = add(handle, network, *source).await;
        if added.is_err() && !there.contains(&(*network, None)) {
            // The address of the Node object may not be one of this machine yet; the kernel chooses a source meanwhile.
            drop(add(handle, network, None).await);
        }
        result = result.and(added);
    }
    // The others are deleted now: where a network replaces single addresses, each keeps a route.
    for network in stale {
        result = result.and(delete(handle, network).await);
    }
    // The rules are added last, so that the table is complete when packets are looked up in it.
    for (version, is_needed) in FAMILIES.into_iter().zip([
        wanted.iter().any(|(network, _)| network.addr().is_ipv4()),
        wanted.iter().any(|(network, _)| network.addr().is_ipv6()),
    ]) {
        if is_needed && rules(handle, &version).await?.is_empty() {
            result = result.and(add_rule(handle, &version).await);
        }
    }
    result
}

/// Returns the networks whose routes have another source than the wanted one, and those whose routes are not wanted. A
/// route without a source stays until one with the wanted source replaces it.
fn old<'a>(
    there: &'a BTreeSet<FrontendRoute>,
    wanted: &'a BTreeSet<FrontendRoute>,
) -> (Vec<&'a IpNet>, Vec<&'a IpNet>) {
    let networks: BTreeSet<&IpNet> = wanted.iter().map(|(network, _)| network).collect();
    let others = there.difference(wanted);
    let others = others.filter(|(network, source)| source.is_some() || !networks.contains(network));
    others.map(|(network, _)| network).partition(|network| networks.contains(network))
}

/// Adds the IPv4 rule while the table may still be empty.
///
/// With the first rule of a network namespace, the kernel takes the local addresses out of the table `main` before it
/// looks them up elsewhere (`fib_unmerge`, called by `fib4_rule_configure` in `net/ipv4/fib_rules.c`). Packets to an
/// address of the node are lost in between, so this comes before the first packet that is served.
pub(super) async fn prepare(handle: &Handle) -> Result<(), Error> {
    if rules(handle, &IpVersion::V4).await?.is_empty() {
        add_rule(handle, &IpVersion::V4).await?;
    }
    Ok(())
}

/// Removes the table and its rules. Returns whether there were any.
pub(super) async fn remove(handle: &Handle) -> Result<bool, Error> {
    let there = list(handle).await?;
    let mut any = !there.is_empty();
    for version in FAMILIES {
        for rule in rules(handle, &version).await? {
            any = true;
            // Rules are removed first, so that no packet is looked up in a table that is being emptied.
            let deleted = handle.rule().del(rule).execute().await;
            deleted.map_err(|error| Error::Netlink("remove a rule", error))?;
        }
    }
    for (network, _) in there {
        delete(handle, &network).await?;
    }
    Ok(any)
}

async fn list(handle: &Handle) -> Result<BTreeSet<FrontendRoute>, Error> {
    let mut all = BTreeSet::new();
    let v4 = RouteMessageBuilder::<Ipv4Addr>::new().table_id(TABLE).build();
    let v6 = RouteMessageBuilder::<Ipv6Addr>::new().table_id(TABLE).build();
    for question in [v4, v6] {
        let mut routes = handle.route().get(question).execute();
        while let Some(route) =
            routes.try_next().await.map_err(|error| Error::Netlink("list routes", error))?
        {
            all.extend(ours(&route));
        }
    }
    Ok(all)
}

/// Returns a route if it belongs to our table.
fn ours(route: &RouteMessage) -> Option<FrontendRoute> {
    let is_ours = route
        .attributes
        .iter()
        .any(|it| matches!(it, RouteAttribute::Table(table) if *table == TABLE));
    let to = route.attributes.iter().find_map(|attribute| {
        if let RouteAttribute::Destination(to) = attribute { address(to) } else { None }
    })?;
    let source = route.attributes.iter().find_map(|attribute| {
        if let RouteAttribute::PrefSource(source) = attribute { address(source) } else { None }
    });
    let network = IpNet::new(to, route.header.destination_prefix_length).ok()?;
    is_ours.then_some((network, source))
}

#[expect(clippy::wildcard_enum_match_arm, reason = "other families have no frontends")]
const fn address(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}

/// Makes a route of type local: IPv6 accepts no other type on this interface.
fn message(network: &IpNet, source: Option<IpAddr>) -> RouteMessage {
    match network {
        IpNet::V4(network) => {
            let builder = RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(network.addr(), network.prefix_len())
                .output_interface(INDEX)
                .table_id(TABLE)
                .scope(netlink_packet_route::route::RouteScope::Host)
                .kind(RouteType::Local);
            match source {
                Some(IpAddr::V4(source)) => builder.pref_source(source),
                Some(IpAddr::V6(_)) | None => builder,
            }
            .build()
        }
        IpNet::V6(network) => {
            let builder = RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(network.addr(), network.prefix_len())
                .output_interface(INDEX)
                .table_id(TABLE)
                .kind(RouteType::Local);
            match source {
                Some(IpAddr::V6(source)) => builder.pref_source(source),
                Some(IpAddr::V4(_)) | None => builder,
            }
            .build()
        }
    }
}

async fn add(handle: &Handle, network: &IpNet, source: Option<IpAddr>) -> Result<(), Error> {
    let added = handle.route().add(message(network, source)).replace().execute().await;
    added.map_err(|error| Error::Netlink("add a route to frontends", error))
}

async fn delete(handle: &Handle, network: &IpNet) -> Result<(), Error> {
    // A request without a source matches a route with any (`fib_table_delete` in net/ipv4/fib_trie.c).
    let deleted = handle.route().del(message(network, None)).execute().await;
    deleted.map_err(|error| Error::Netlink("remove a route to frontends", error))
}

async fn rules(handle: &Handle, version: &IpVersion) -> Result<Vec<RuleMessage>, Error> {
    let rules = handle.rule().get(version.clone()).execute();
    let rules: Vec<RuleMessage> =
        rules.try_collect().await.map_err(|error| Error::Netlink("list rules", error))?;
    // A rule belongs to this agent if it leads to its table; the priority may be used by others.
    let is_ours = |rule: &RuleMessage| {
        rule.attributes
            .iter()
            .any(|it| matches!(it, RuleAttribute::Table(table) if *table == TABLE))
    };
    Ok(rules.into_iter().filter(is_ours).collect())
}

/// Adds the rule for packets that this host sends: `iif lo`.
async fn add_rule(handle: &Handle, version: &IpVersion) -> Result<(), Error> {
    let rule = handle
        .rule()
        .add()
        .input_interface("lo")
        .table_id(TABLE)
        .priority(PRIORITY)
        .action(RuleAction::ToTable);
    let added = match version {
        IpVersion::V4 => rule.v4().execute().await,
        IpVersion::V6 => rule.v6().execute().await,
    };
    added.map_err(|error| Error::Netlink("add a rule", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_without_source_stays_until_it_is_replaced() {
        let net = |third: u8| IpNet::new([10, third, 0, 0].into(), 16).unwrap();
        let own = |last: u8| Some(IpAddr::from([192, 168, 50, last]));
        let there = BTreeSet::from([
            (net(1), own(1)),
            (net(2), own(9)),
            (net(3), None),
            (net(4), own(1)),
            (net(5), None),
        ]);
        let wanted = BTreeSet::from([1, 2, 3].map(|third| (net(third), own(1))));
        let (replaced, stale) = old(&there, &wanted);
        assert_eq!(replaced, [&net(2)], "before the new one is added");
        assert_eq!(stale, [&net(4), &net(5)], "after that");
    }
}
