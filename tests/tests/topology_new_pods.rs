//! New pods, whose programs are attached without delay: neither a long iteration of the agent's main loop, nor a long
//! list of routes, nor an event that the kernel dropped makes a pod wait (ADR 0030).

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use lb_agent::node::watch::look;
use lb_tests::campaign;
use lb_tests::cpus::nice;
use lb_tests::manifest::Service;
use lb_tests::netns::Netns;
use lb_tests::programs;
use lb_tests::rig::{Rig, TARGET};
use lb_tests::topology::{Family, Shape, Topology};
use lb_tests::traffic::Ask;
use lb_tests::wait::{self, wait_until_ok};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

const SOON: Duration = Duration::from_mins(1);
/// The number of changes of an interface in one batch, and the number of batches: more events than the agent's receive
/// buffers hold.
const CHANGES: usize = 2_000;
const ROUNDS: usize = 20;
/// The number of additional failed questions of a pod that is allowed, compared with a run without dropped events. Each
/// question waits for half a second.
const IN_VAIN: u32 = 8;
/// The number of routes that a border gateway may get from a peer.
const ROUTES: u32 = 150_000;
/// The number of pods that are added while routes are listed.
const PODS: usize = 5;
/// The pause between two checks of a new interface.
const LOOK: Duration = Duration::from_micros(500);
/// The shortest interval between two lists of all routes by the agent.
const EACH: Duration = Duration::from_secs(1);

/// The agent is stopped (SIGSTOP) while an interface changes so often that the kernel drops events, and a pod is added.
/// Only the list that the agent requests afterwards contains the pod.
#[test]
fn pod_that_came_among_dropped_events_is_served_at_once() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed).nodes(1))?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    rig.manifests().apply(&web)?;
    rig.start_agents(&[])?;
    let question = Ask::tcp(web.frontend(Family::V4)).within(500);
    rig.node(0)?.netns().ip("link add spare type veth peer name spare-peer
         link set spare up")?;
    let quiet = asked_in_vain(&mut rig, question, |_| Ok(()))?;
    let flooded = asked_in_vain(&mut rig, question, flood)?;
    ensure!(
        flooded <= quiet + IN_VAIN,
        "{flooded} failed questions, {quiet} without dropped events"
    );
    Ok(())
}

/// Stops the agent during `work` and the creation of a pod; returns the number of failed questions of that pod
/// afterwards.
fn asked_in_vain(
    rig: &mut Rig,
    question: Ask,
    meanwhile: impl FnOnce(&Rig) -> Result<()>,
) -> Result<u32> {
    let agent = Pid::from_raw(rig.agent(0)?.id().cast_signed());
    kill(agent, Signal::SIGSTOP)?;
    meanwhile(rig)?;
    let pod = rig.add_pod(0)?;
    kill(agent, Signal::SIGCONT)?;
    let (mut count, began) = (0, Instant::now());
    while let Err(failure) = pod.peer().ask(question) {
        count += 1;
        ensure!(began.elapsed() < SOON, "never answered: {failure}");
        wait::pass(Duration::from_millis(100));
    }
    Ok(count)
}

/// Changes an interface until every socket of the agent that receives link events has lost some.
fn flood(rig: &Rig) -> Result<()> {
    let netns = rig.node(0)?.netns();
    let before = dropping(netns)?;
    for _ in 0..ROUNDS {
        let mut lines = String::new();
        for number in 0..CHANGES {
            writeln!(lines, "link set spare alias a{number}")?;
        }
        netns.ip(&lines)?;
        let dropping = dropping(netns)?;
        if dropping.iter().zip(&before).all(|(now, before)| now > before) {
            return Ok(());
        }
    }
    bail!("nothing was dropped: {:?}", dropping(netns)?)
}

/// The number of dropped events for each socket that receives link events, from `/proc/net/netlink`.
fn dropping(netns: &Netns) -> Result<Vec<u64>> {
    let text = netns.proc_net("netlink")?;
    let rows = text.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    // Protocol 0 is NETLINK_ROUTE, and the lowest bit of the groups is that of links.
    let follows = |row: &Vec<&str>| {
        let groups = row.get(3).and_then(|groups| u32::from_str_radix(groups, 16).ok());
        row.get(1) == Some(&"0") && groups.is_some_and(|groups| groups & 1 != 0)
    };
    rows.filter(follows).map(|row| Ok(row.get(8).context("drops")?.parse()?)).collect()
}

/// One route is removed and added repeatedly, so that the agent lists all routes again and again. A list takes long,
/// and no pod may wait for it.
#[test]
fn pods_do_not_wait_for_a_long_list_of_routes() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed).nodes(1))?;
    rig.start_agents(&[])?;
    let mut pods = Newcomers::new(rig.node(0)?.netns(), "peers-of-routes")?;
    let netns = pods.node;
    let mut lines = String::new();
    for number in 0..ROUTES {
        let [_, a, b, c] = number.to_be_bytes();
        writeln!(lines, "route add {}.{b}.{c}.0/24 via 192.168.50.1 dev eth0", 60 + a)?;
    }
    netns.ip(&lines)?;
    let began = Instant::now();
    drop(netns.run_in(look)??);
    let list = began.elapsed();
    for _ in 0..PODS {
        wait::pass(EACH);
        // After a route was removed, the agent lists all others, because one of them may lead to the same destinations.
        netns.ip("route del 60.0.0.0/24\nroute add 60.0.0.0/24 via 192.168.50.1 dev eth0")?;
        wait::pass(list / 10);
        pods.come()?;
    }
    pods.waits.sort_unstable();
    let (waits, middle) = (&pods.waits, pods.waits[PODS / 2]);
    println!("a list of {ROUTES} routes takes {list:?}; pods waited {waits:?}");
    ensure!(middle < list / 4, "pods waited {waits:?}, and a list takes {list:?}");
    Ok(())
}

/// All Services get another backend at once, which the agent programs in one iteration of its main loop.
#[test]
fn pods_do_not_wait_for_a_long_turn_of_the_main_loop() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed).nodes(1))?;
    let services = campaign::size(3_000, 5_000);
    many(&rig, services, 1)?;
    rig.start_agents(&[])?;
    let mut pods = Newcomers::new(rig.node(0)?.netns(), "peers-of-turns")?;
    let passed = |what: &str| {
        let name = format!("kubeproxy_sync_proxy_rules_duration_seconds_{what}");
        rig.agent(0)?.metric(&[&name, "IPv4"])
    };
    let (turns, time) = (passed("count")?, passed("sum")?);
    for round in 2..5 {
        let before = passed("count")?;
        many(&rig, services, round)?;
        wait_until_ok(SOON, "the agent programs the other backends", || {
            pods.come()?;
            ensure!(passed("count")? > before, "not yet");
            Ok(())
        })?;
    }
    let (turns, time) = (passed("count")? - turns, passed("sum")? - time);
    let longest = Duration::from_secs_f64(time / turns);
    pods.waits.sort_unstable();
    let (count, worst) = (pods.waits.len(), *pods.waits.last().context("a pod")?);
    // Each long turn would make the pod wait that comes meanwhile. The machine itself may stand still once.
    let second = *pods.waits.iter().nth_back(1).context("two pods")?;
    let of = format!("{services} Services change");
    campaign::figure(&format!("turn of the main loop when {of}"), longest.as_millis(), "ms");
    campaign::figure(
        &format!("{count} pods meanwhile, from up to attached, worst"),
        worst.as_micros(),
        "us",
    );
    ensure!(second < longest / 3, "a turn takes {longest:?}, and pods waited {:?}", pods.waits);
    Ok(())
}

/// Writes this number of Services, all with this backend.
fn many(rig: &Rig, services: u32, backend: u8) -> Result<()> {
    let objects = (0..services).flat_map(|number| {
        let (name, [_, _, high, low]) = (format!("many-{number}"), number.to_be_bytes());
        let address = format!("10.96.{}.{low}", 1 + high);
        [
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
                "spec": {"clusterIP": address, "ports": [{"port": 80}]},
            }),
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
                "ports": [{"port": TARGET}],
                "endpoints": [{"addresses": [format!("10.244.9.{backend}")]}],
            }),
        ]
    });
    rig.manifests().write("many", &objects.collect::<Vec<_>>())
}

/// Pods that are added one after another, and the time that each waited for its programs.
struct Newcomers<'a> {
    node: &'a Netns,
    peers: Netns,
    waits: Vec<Duration>,
}

impl<'a> Newcomers<'a> {
    fn new(node: &'a Netns, peers: &str) -> Result<Self> {
        // Otherwise the measurement would include the scheduling delay of this thread.
        nice(-19)?;
        Ok(Self { node, peers: Netns::new(peers)?, waits: Vec::new() })
    }

    fn come(&mut self) -> Result<()> {
        let (number, peers) = (self.waits.len(), self.peers.name());
        self.node.ip(&format!(
            "link add late{number} type veth peer name late{number} netns {peers}\n\
             link set late{number} up"
        ))?;
        let waited = self.node.run_in(|| {
            let began = Instant::now();
            while !programs::are_on(&format!("late{number}"))? {
                ensure!(began.elapsed() < SOON, "late{number} has no programs");
                wait::pass(LOOK);
            }
            Ok(began.elapsed())
        })??;
        self.waits.push(waited);
        Ok(())
    }
}
