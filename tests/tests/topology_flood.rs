//! Floods of questions that stay unanswered, from ever new clients: no flow in use is lost, and every new flow is
//! served. While no agent runs, expired flows make room by themselves.

#[path = "topology_flood/crowd.rs"]
mod crowd;
#[path = "topology_flood/dead_agent.rs"]
mod dead_agent;
#[path = "topology_flood/flood.rs"]
mod flood;
#[path = "topology_flood/flooded.rs"]
mod flooded;
#[path = "topology_flood/fragments.rs"]
mod fragments;

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_agent::datapath::LAYOUT;
use lb_agent::maps::{Maps, Table};
use lb_common::flow::{Flow, FlowKey, Tuple};
use lb_tests::agent::Agent;
use lb_tests::campaign;
use lb_tests::in_both_shapes;
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::rig::{Rig, TARGET, ask, askers, until};
use lb_tests::topology::{Addresses, Family, Member, Shape, Topology};
use lb_tests::traffic::{Ask, Load};
use lb_tests::wait;

use self::flood::Flood;

/// The capacity of each flow table.
const CAPACITY: u32 = 4_096;
/// Milliseconds between two questions of one client.
const PAUSE: u64 = 20;
/// Long enough for every kept UDP flow to count as a stream, which takes two seconds (`Lifetimes::STREAM`).
const STREAM: Duration = Duration::from_millis(2_500);
const NODE_PORT: u16 = 30_080;
const FLOOD_PORT: u16 = 30_081;
/// A port without a listener: the backend answers a SYN with an RST.
const CLOSED: u16 = 9;

in_both_shapes!(
    flood_without_answers_costs_other_flows_nothing,
    first_packets_at_a_rate_cost_other_flows_nothing,
    segments_of_every_kind_cost_other_flows_nothing,
    flood_makes_no_client_with_a_connection_forgotten,
);

/// Starts a Service in use, and one that is flooded, with a local and a remote backend. `capacity` is that of each
/// flow table, if not the default.
fn rig(shape: Shape, capacity: Option<u32>) -> Result<(Rig, [Service; 2])> {
    rig_of(shape, capacity, &["FLOWS", "TRANSIENT4", "TRANSIENT6"])
}

/// As [`rig`], with `capacity` as that of these maps.
fn rig_of(shape: Shape, capacity: Option<u32>, maps: &[&str]) -> Result<(Rig, [Service; 2])> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT).pods(&rig.pods());
    let flooded = Service::new("flooded", 11)?.port(80, CLOSED).node_port(FLOOD_PORT);
    let vip = Addresses::parse("198.51.100.7", "fd00:198::7")?;
    let flooded = flooded.load_balancer(&vip.both(), &[]);
    let backends = [Endpoint::pod(rig.pod(0, 1)?), Endpoint::pod(rig.pod(1, 1)?)];
    let flooded = flooded.endpoints(backends);
    let node = rig.node(0)?.addresses();
    rig.client().netns().ip(&format!(
        "route add 198.51.100.7/32 via {}\nroute add fd00:198::7/128 via {}",
        node.v4, node.v6
    ))?;
    rig.manifests().apply(&web)?;
    rig.manifests().apply(&flooded)?;
    start_agents(&mut rig, capacity, maps)?;
    Ok((rig, [web, flooded]))
}

/// Starts the agents of a rig, with `capacity` as that of these maps, if not the default.
fn start_agents(rig: &mut Rig, capacity: Option<u32>, maps: &[&str]) -> Result<()> {
    let sizes: Vec<String> =
        maps.iter().filter_map(|map| Some(format!("{map}={}", capacity?))).collect();
    let flags: Vec<&str> = sizes.iter().flat_map(|size| ["--map-size", size.as_str()]).collect();
    rig.start_agents(&flags)
}

/// Continuous questions: their description, whether one socket sends all of them, and the load.
type Asked<'a> = (String, bool, Load<'a>);

/// All clients use a Service continuously, through kept and through new sockets.
fn everybody_asks<'a>(rig: &'a Rig, web: &Service) -> Result<Vec<Asked<'a>>> {
    all_ask(askers(rig, web, NODE_PORT)?)
}

/// As [`everybody_asks`], with these clients and questions.
fn all_ask(askers: Vec<(&Member, Ask)>) -> Result<Vec<Asked<'_>>> {
    let mut loads = Vec::new();
    for (from, question) in askers {
        for kept in [true, false] {
            let Ask { to, protocol, .. } = question;
            let who = format!("{} asks {to} by {protocol}, kept: {kept}", from.name());
            loads.push((who, kept, from.peer().load(question, kept, PAUSE)?));
        }
    }
    Ok(loads)
}

/// Ends the questions. Fails if one was not answered, or if another server answered a kept socket. Returns the number
/// of answers, and the milliseconds of the slowest one.
fn none_is_lost(rig: &Rig, loads: Vec<Asked<'_>>) -> Result<(u64, u64)> {
    let (mut answers, mut slowest) = (0, 0);
    for (who, kept, load) in loads {
        let tally = load.finish_without_loss().with_context(|| loss(rig, &who))?;
        ensure!(!kept || tally.servers.len() == 1, "{who}: {tally:?}");
        answers += tally.answered();
        slowest = slowest.max(tally.slowest);
    }
    Ok((answers, slowest))
}

fn flood_without_answers_costs_other_flows_nothing(shape: Shape) -> Result<()> {
    costs_other_flows_nothing(shape, Some(CAPACITY), Flood::of_first_packets())
}

/// With tables of the default size.
fn first_packets_at_a_rate_cost_other_flows_nothing(shape: Shape) -> Result<()> {
    costs_other_flows_nothing(shape, None, Flood::of_first_packets_at_a_rate())
}

/// With tables of the default size.
fn segments_of_every_kind_cost_other_flows_nothing(shape: Shape) -> Result<()> {
    costs_other_flows_nothing(shape, None, Flood::of_every_kind())
}

fn costs_other_flows_nothing(shape: Shape, capacity: Option<u32>, flood: Flood) -> Result<()> {
    let (rig, [web, flooded]) = rig(shape, capacity)?;
    let loads = everybody_asks(&rig, &web)?;
    wait::pass(STREAM);
    let began = Instant::now();
    let external = Addresses::parse("198.51.100.7", "fd00:198::7")?;
    let sent = pour(&rig, flood, |family| {
        let node = rig.node(0)?.addresses();
        let outside =
            vec![node.socket(family, FLOOD_PORT), SocketAddr::new(external.of(family), 80)];
        Ok((outside, flooded.frontend(family)))
    })?;
    let took = began.elapsed();
    let (answers, slowest) = none_is_lost(&rig, loads)?;
    let pace = if flood.is_paced {
        "at most 30,000 a second from each of two senders"
    } else {
        "as fast as they go"
    };
    let what = format!("floods of {} kinds, {pace}, {shape:?} pods", flood.kinds.len());
    campaign::figure(&format!("packets of {what}"), sent, "packets");
    campaign::figure(&format!("answers beside {what}, none lost"), answers, "answers");
    campaign::figure(&format!("slowest answer beside {what}"), slowest, "ms");
    let rate = u128::from(sent) * 1_000 / took.as_millis().max(1);
    campaign::figure(&format!("packets a second of {what}"), rate, "packets");
    // Two senders of two families; one that is not paced may find its queue full.
    let least = if flood.is_paced { 3 * flood.packets } else { flood.packets };
    ensure!(sent > least, "only {sent} packets of floods were sent");
    let protected = protected(&rig, |tuple| {
        [tuple.source_port, tuple.destination_port].iter().any(|port| port.get() == CLOSED)
    })?;
    ensure!(protected.is_empty(), "protected: {} such as {:?}", protected.len(), protected.first());
    Ok(())
}

/// Floods, of each family, the first addresses from outside and the other one from a pod, from spoofed sources. Returns
/// the number of packets that were sent.
fn pour(
    rig: &Rig,
    flood: Flood,
    targets: impl Fn(Family) -> Result<(Vec<SocketAddr>, SocketAddr)>,
) -> Result<u32> {
    let [client, pod] = [rig.client(), &**rig.pod(0, 0)?];
    let mut sent = 0;
    for family in Family::ALL {
        let (outside, inside) = targets(family)?;
        sent += thread::scope(|scope| -> Result<u32> {
            let own = client.addresses().socket(family, 25_998);
            let one = scope.spawn(move || flood.send(client, own, &outside, true));
            let own = pod.addresses().socket(family, 25_999);
            let other = scope.spawn(move || flood.send(pod, own, &[inside], true));
            let [one, other] = [one, other].map(thread::ScopedJoinHandle::join);
            let failed = |_| anyhow::anyhow!("a flood ended early");
            Ok(one.map_err(failed)?? + other.map_err(failed)??)
        })?;
    }
    Ok(sent)
}

/// Protected entries with a tuple that `is_flooded` accepts. There must be none, because in none of these flows both
/// ends have sent what continues a connection.
fn protected(rig: &Rig, is_flooded: impl Fn(&Tuple) -> bool) -> Result<Vec<(FlowKey, Flow)>> {
    let maps = Maps::open(&rig.node(0)?.bpf().join(LAYOUT).join("maps"))?;
    let mut found = Vec::new();
    maps.flows().walk(Table::Protected, |key, flow| {
        if is_flooded(&key.tuple) || is_flooded(&flow.to) {
            found.push((*key, *flow));
        }
    })?;
    Ok(found)
}

/// Each client has asked once; the flood comes from several times as many sources as the table has entries.
fn flood_makes_no_client_with_a_connection_forgotten(shape: Shape) -> Result<()> {
    const STICKY_PORT: u16 = 30_082;
    let (rig, _) = rig_of(shape, Some(CAPACITY), &["AFFINITY"])?;
    let sticky = Service::new("sticky", 12)?.port(80, TARGET).node_port(STICKY_PORT);
    let sticky = sticky.pods(&rig.pods()).affinity(600);
    rig.manifests().apply(&sticky)?;
    for node in 0..2 {
        until(rig.node(node)?, Ask::tcp(sticky.frontend(Family::V6)), Result::is_ok)?;
    }
    let mut kept = Vec::new();
    for family in Family::ALL {
        let node_port = rig.node(0)?.addresses().socket(family, STICKY_PORT);
        let asked = [(rig.client(), node_port), (&**rig.pod(0, 0)?, sticky.frontend(family))];
        for (from, to) in asked {
            let answer = ask(from, Ask::tcp(to))?;
            kept.push((from, from.addresses().of(family), to, answer.server));
        }
    }
    let remembered = || -> Result<usize> {
        let list = rig.agent(0)?.command(&["affinity", "list", "--no-headers"])?;
        let ips = kept.iter().map(|(_, ip, ..)| ip.to_string());
        Ok(ips.filter(|ip| list.split_whitespace().any(|word| word == ip)).count())
    };
    ensure!(remembered()? == kept.len(), "before: {}", remembered()?);
    for family in Family::ALL {
        let own = rig.client().addresses().socket(family, 25_998);
        let to = [rig.node(0)?.addresses().socket(family, STICKY_PORT)];
        let sent = Flood::of_first_packets().send(rig.client(), own, &to, true)?;
        ensure!(sent > CAPACITY, "only {sent} packets of the flood were sent");
    }
    ensure!(remembered()? == kept.len(), "of {} only {}", kept.len(), remembered()?);
    for (from, _, to, server) in &kept {
        let now = ask(from, Ask::tcp(*to))?.server;
        ensure!(now == *server, "{} asks {to}: {now} after {server}", from.name());
    }
    Ok(())
}

/// The text of an error about a lost answer: the client, and all that was counted.
fn loss(rig: &Rig, who: &str) -> String {
    let programs: Vec<_> = (0..2).filter_map(|node| rig.agent(node).ok()).map(counted).collect();
    format!("{who}; the agents that run have counted {programs:?}, the kernel {:?}", discarded(rig))
}

/// The kernel's counters of errors and discarded packets of every host that are not zero, and the packets that the
/// queues between interfaces (`netdev_max_backlog`) have dropped since the machine started.
fn discarded(rig: &Rig) -> Result<Vec<String>> {
    // A datagram that no socket expects, such as an answer from an untranslated source, counts as `NoPorts`.
    let names = ["Error", "Discard", "Drop", "NoPorts", "Overflow", "DoCookies"];
    let is_one = |name: &str| names.iter().any(|it| name.contains(it));
    let mut all = Vec::new();
    for host in rig.topology().members() {
        for file in ["snmp", "snmp6", "netstat"] {
            let counters = host.netns().counters(file)?.into_iter();
            let counters = counters.filter(|(name, count)| *count != 0 && is_one(name));
            all.extend(counters.map(|(name, count)| format!("{} {name} {count}", host.name())));
        }
    }
    all.push(format!("all backlogs {}", backlogs_dropped(rig)?));
    Ok(all)
}

/// The second column of `softnet_stat`, of all CPUs and network namespaces.
fn backlogs_dropped(rig: &Rig) -> Result<u64> {
    let text = rig.client().netns().proc_net("softnet_stat")?;
    let dropped = text.lines().filter_map(|cpu| cpu.split_whitespace().nth(1));
    Ok(dropped.map(|count| u64::from_str_radix(count, 16)).sum::<Result<u64, _>>()?)
}

/// The drops and events that the programs have counted.
fn counted(agent: &Agent) -> Result<Vec<(String, f64)>> {
    let names = ["lb_drops_total", "lb_events_total"];
    let is_one = |(name, count): &(String, f64)| {
        *count > 0.0 && names.iter().any(|one| name.starts_with(one))
    };
    Ok(agent.metrics()?.into_iter().filter(is_one).collect())
}
