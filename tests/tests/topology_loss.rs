//! Downloads over a path that loses packets: all complete, as without our programs, because a retransmitted segment, and
//! a FIN that one side has missed, still find their flow. The same holds where the client closes first and reads the
//! rest afterwards.
//!
//! No client gets a packet from a backend's own address, no backend one to a frontend's, and no flow stays.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::campaign;
use lb_tests::in_both_shapes;
use lb_tests::join_all::join_all;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask};
use lb_tests::topology::{Addresses, Family, Member, Node, Shape, Topology};
use lb_tests::traffic::Ask;
use lb_tests::traffic::closing::Path;
use lb_tests::wait::wait_until_ok;

in_both_shapes!(downloads_over_a_path_that_loses_packets_are_whole);

const NAMES: [&str; 2] = ["near", "far"];
/// `NodePort`s of a local pod, and of a pod of the other node.
const NODE_PORTS: [u16; 2] = [30_080, 30_081];
/// `NodePort`s of the same pods' other port, whose connections are half-closed.
const CLOSING_PORTS: [u16; 2] = [30_082, 30_083];
/// The port of the servers that reply after a half-close.
const CLOSING: u16 = 9_100;
/// The length in bytes of a download: several TCP windows.
const SIZE: usize = 100_000;
/// The timeout in milliseconds: a SYN may be lost three times, and retransmissions back off.
const PATIENCE: u64 = 60_000;

/// Drops one of fifty routed packets, in both directions.
fn lose(node: &Node) -> Result<()> {
    let rules = "table inet loss { chain forward { type filter hook forward priority 0; \
                 numgen random mod 50 == 0 counter drop; }; }";
    node.netns().tool_fed("nft", &["-f", "-"], rules).map(drop)
}

/// Waits until the connections by plain routing are over at an end of them. A lost last segment is sent again later, by
/// a process that is late on a busy machine later still, and its addresses are those of no Service.
fn until_over(member: &Member) -> Result<()> {
    let ends = ["sport", "dport"].map(|end| format!("{end} = :{TARGET} or {end} = :{CLOSING}"));
    let port = format!("( {} )", ends.join(" or "));
    wait_until_ok(Duration::from_millis(PATIENCE), "connections by plain routing are over", || {
        let which = ["-HtnO", "state", "connected", "exclude", "time-wait", &port];
        let open = member.netns().tool("ss", &which)?;
        ensure!(open.trim().is_empty(), "open at {}: {open}", member.name());
        Ok(())
    })
}

/// Counts packets that no translation explains: at a client those from a backend's own address, which no client here
/// has used, and at a backend those to another address.
fn watch(member: &Member, backends: &[Addresses]) -> Result<()> {
    let own = member.addresses();
    let targets = format!("{{ {TARGET}, {CLOSING} }}");
    let counts: String = if backends.iter().any(|backend| backend.v4 == own.v4) {
        format!(
            "ip daddr != {} tcp dport {targets} counter; ip6 daddr != {} tcp dport {targets} counter;",
            own.v4, own.v6
        )
    } else {
        let count = |it: &Addresses| {
            format!(
                "ip saddr {} tcp sport {targets} counter add @ports {{ tcp dport }}; \
                 ip6 saddr {} tcp sport {targets} counter add @ports {{ tcp dport }};",
                it.v4, it.v6
            )
        };
        backends.iter().map(count).collect()
    };
    let rules = format!(
        "table inet foreign {{ set ports {{ type inet_service; flags dynamic; size 1024; }}; \
         chain c {{ type filter hook prerouting priority -300; {counts} }}; }}"
    );
    member.netns().tool_fed("nft", &["-f", "-"], &rules).map(drop)
}

fn nothing_foreign_came(member: &Member) -> Result<()> {
    let counted = member.netns().tool("nft", &["list", "table", "inet", "foreign"])?;
    let counters: Vec<_> = counted.lines().filter(|line| line.contains("counter")).collect();
    let none = counters.iter().all(|line| line.contains("counter packets 0 "));
    ensure!(none && !counters.is_empty(), "foreign packets at {}: {counted}", member.name());
    Ok(())
}

fn download(from: &Member, asked: &[Ask]) -> Result<u32> {
    let mut whole = 0;
    for _ in 0..campaign::size(10, 250) {
        for question in asked {
            let question = question.sized(0, SIZE).within(PATIENCE);
            let answer = ask(from, question).with_context(|| format!("{question:?}"))?;
            ensure!(answer.peer == question.to, "{answer:?}");
            whole += 1;
        }
    }
    Ok(whole)
}

/// Downloads from a client outside and from a pod at once; returns the number of whole ones.
fn download_both(rig: &Rig, outside: &[Ask], inside: &[Ask]) -> Result<u32> {
    let all = [(rig.client(), outside), (&**rig.pod(0, 0)?, inside)];
    let both = join_all(all.map(|(from, asked)| move || download(from, asked)))?;
    Ok(both.into_iter().sum())
}

/// Half-closes connections of each client in turn, both clients at once; returns the number of whole downloads.
fn half_close_all(paths: &[[Path<'_>; 2]]) -> Result<u32> {
    let of = |at: usize| -> Result<u32> {
        let mut whole = 0;
        for _ in 0..campaign::size(5, 125) {
            for path in paths {
                path[at].half_close(SIZE)?;
                whole += 1;
            }
        }
        Ok(whole)
    };
    let of = &of;
    Ok(join_all([0, 1].map(|at| move || of(at)))?.into_iter().sum())
}

/// Each path to a local and a remote pod, by plain routing or through Services.
fn closing_paths<'a>(rig: &'a Rig, services: Option<&[Service; 2]>) -> Result<Vec<[Path<'a>; 2]>> {
    let mut all = Vec::new();
    for (at, family) in [0, 1].into_iter().flat_map(|at| Family::ALL.map(|family| (at, family))) {
        let server = (rig.pod(at, 1)?, CLOSING);
        all.push(match services {
            None => Path::plain(rig, server, family)?,
            Some(all) => Path::all(rig, (&all[at], CLOSING_PORTS[at]), server, family)?,
        });
    }
    Ok(all)
}

/// Starts a Service of each pod's two ports.
fn apply(rig: &Rig) -> Result<[[Service; 2]; 2]> {
    let service = |name: &str, number: u8, at: usize, [port, target]: [u16; 2]| {
        let service = Service::new(name, number)?.port(80, target).node_port(port);
        let service = service.pods(&[rig.pod(at, 1)?]);
        rig.manifests().apply(&service)?;
        anyhow::Ok(service)
    };
    let of = |at: usize| -> Result<[Service; 2]> {
        let number = 10 + at as u8;
        let read = service(NAMES[at], number, at, [NODE_PORTS[at], TARGET])?;
        let name = format!("{}-closing", NAMES[at]);
        Ok([read, service(&name, number + 2, at, [CLOSING_PORTS[at], CLOSING])?])
    };
    let [[near, near_closing], [far, far_closing]] = [of(0)?, of(1)?];
    Ok([[near, far], [near_closing, far_closing]])
}

fn downloads_over_a_path_that_loses_packets_are_whole(shape: Shape) -> Result<()> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    let [services, closing] = apply(&rig)?;
    lose(rig.node(0)?)?;
    let addresses = [rig.pod(0, 1)?, rig.pod(1, 1)?].map(|it| it.addresses());
    let direct = |family| addresses.map(|it| Ask::tcp(it.socket(family, TARGET)));
    let direct: Vec<Ask> = Family::ALL.into_iter().flat_map(direct).collect();
    // The same path and the same loss, by plain routing to the pods.
    let plain = download_both(&rig, &direct, &direct)?;
    let plainly_closed = half_close_all(&closing_paths(&rig, None)?)?;
    rig.start_agents(&[])?;
    let node = rig.node(0)?;
    let node_ports =
        |family| NODE_PORTS.map(|port| Ask::tcp(node.addresses().socket(family, port)));
    let outside: Vec<Ask> = Family::ALL.into_iter().flat_map(node_ports).collect();
    let of = |service: &Service| Family::ALL.map(|family| Ask::tcp(service.frontend(family)));
    let inside: Vec<Ask> = services.iter().flat_map(of).collect();
    let backends: [&Member; 2] = [rig.pod(0, 1)?, rig.pod(1, 1)?];
    let ends = [rig.client(), rig.pod(0, 0)?].into_iter().chain(backends);
    ends.clone().try_for_each(until_over)?;
    ends.clone().try_for_each(|it| watch(it, &addresses))?;
    let whole = download_both(&rig, &outside, &inside)?;
    let closed = half_close_all(&closing_paths(&rig, Some(&closing))?)?;
    let lost = node.netns().tool("nft", &["list", "table", "inet", "loss"])?;
    ensure!(!lost.contains("counter packets 0 "), "no packet was lost: {lost}");
    ends.into_iter().try_for_each(nothing_foreign_came)?;
    NAMES.iter().try_for_each(|name| {
        rig.agent(0)?.until_no_flow(name, TARGET)?;
        rig.agent(0)?.until_no_flow(&format!("{name}-closing"), CLOSING)
    })?;
    ensure!(whole == plain, "{whole} whole downloads through Services, {plain} by plain routing");
    for (path, whole, closed) in [("", whole, closed), (" by plain routing", plain, plainly_closed)]
    {
        let of = |kind: &str| format!("{kind} downloads{path} with 2 % loss, {shape:?} pods");
        campaign::figure(&of("whole"), whole, "downloads");
        campaign::figure(&of("half-closed"), closed, "downloads");
    }
    Ok(())
}
