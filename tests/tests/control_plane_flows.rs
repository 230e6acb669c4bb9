//! Flows whose endpoints change, row by row of contract 5, with the real kube-proxy and with our agent.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::campaign;
use lb_tests::control_plane::kube_proxy::Mode;
use lb_tests::join_all::join_all;
use lb_tests::matrix::{
    Answers, Compared, Destination, Detector, Phase, Proxy, Row, SECOND_TARGET, SETTINGS, STALE,
    Setup, SharedApiServer, Source, World, frontend, rows, services,
};
use lb_tests::rig::{TARGET, longer};
use lb_tests::topology::Family;
use lb_tests::traffic::{Answer, Ask, Failure, Kept, Protocol};
use lb_tests::wait::wait_until;

/// The deadline for packets to follow a change.
const SOON: Duration = Duration::from_mins(1);
/// The timeout in milliseconds for a question that is repeated.
const PATIENCE: u64 = 400;
/// The timeout in milliseconds for a question that is not repeated.
const LATE: u64 = 15_000;
/// The number of worlds with settings at a time.
const AT_ONCE: usize = 5;
/// A port that no Service has.
const PLAIN_PORT: u16 = 8_472;

/// A flow that began in the first state.
struct Old<'a> {
    who: String,
    ask: Ask,
    from: Source,
    kept: Kept<'a>,
}

#[test]
fn flows_follow_their_endpoints_as_the_contract_says() -> Result<()> {
    let plain = [Proxy::KubeProxy(Mode::Nftables), Proxy::Ours, Proxy::OursMasquerading];
    let with = campaign::size(&[][..], &SETTINGS).chunks(AT_ONCE).map(<[_]>::to_vec);
    let groups = [plain.map(|proxy| (proxy, "")).to_vec()].into_iter().chain(with);
    let mut wrong = Vec::new();
    for worlds in groups {
        let rows = rows_in(&worlds)?;
        let names = worlds.iter().map(|with| Setup::with(*with, Detector::NodeCidr).name());
        let names = names.collect::<Vec<_>>().join("; ");
        campaign::figure(&format!("rows of flows that follow, each with {names}"), rows.0, "rows");
        wrong.extend(rows.1);
    }
    ensure!(wrong.is_empty(), "{} rows are wrong:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

/// Tests every row in these worlds in parallel; returns the number of rows that held in all of them, and the failures.
fn rows_in(worlds: &[(Proxy, &'static str)]) -> Result<Compared> {
    let server = SharedApiServer::take_over()?;
    server.publish(&services()?)?;
    let start = |with: &_| World::start(Setup::with(*with, Detector::NodeCidr), &server);
    let worlds: Vec<World> = worlds.iter().map(start).collect::<Result<_>>()?;
    for world in &worlds {
        let pod = world.rig().pod(0, 1)?;
        pod.peer().serve(Protocol::Udp, &pod.addresses().both(), SECOND_TARGET)?;
    }
    let (mut right, mut wrong) = (0, Vec::new());
    for row in rows()? {
        match ask_row(&server, &worlds, &row) {
            Ok(()) => right += 1,
            Err(error) => wrong.push(format!("{error:#}")),
        }
    }
    drop(worlds);
    if wrong.is_empty() {
        server.leave();
    }
    Ok((right, wrong))
}

fn ask_row(server: &SharedApiServer, worlds: &[World], row: &Row) -> Result<()> {
    let mut old: Vec<(&World, Vec<Old<'_>>)> = Vec::new();
    for (number, phase) in row.phases.iter().enumerate() {
        let at = || format!("{}, state {number}", row.name);
        publish(server, phase).with_context(at)?;
        let asks = asks(row)?;
        let new = worlds.iter().flat_map(|world| asks.iter().map(move |ask| (world, *ask)));
        let new = new
            .map(|(world, (from, ask))| move || new_flow_is_answered(world, from, ask, phase.new));
        drop(join_all(new).with_context(at)?);
        if number == 0 {
            for world in worlds {
                old.push((world, begin(world, row)?));
            }
        }
        if row.name.starts_with("CT7") && number == 1 {
            // Only a flow that still sends to the old port can notice this.
            serve(worlds, false)?;
        }
        let flows =
            old.iter().flat_map(|(world, flows)| flows.iter().map(move |flow| (world, flow)));
        let flows = flows.map(|(world, flow)| move || follows(world, flow, phase));
        drop(join_all(flows).with_context(at)?);
        if row.name.starts_with("CT7") && number == 1 {
            serve(worlds, true)?;
        }
    }
    drop(old);
    publish(
        server,
        &Phase {
            objects: Vec::new(),
            new: Answers::Nobody,
            old: Answers::Nobody,
            old_with_kube_proxy: Answers::Nobody,
        },
    )
}

/// Checks that an old flow gets the answer that the contract requires for the world's proxy.
fn follows(world: &World, flow: &Old<'_>, phase: &Phase) -> Result<()> {
    let outcome = if world.setup().is_kube_proxy() {
        // Whether kube-proxy shows its known fault depends on when it clears its connection tracking entries.
        is_answered(flow, &[phase.old_with_kube_proxy, phase.old])
            .or_else(|fault| is_answered(flow, &[phase.old]).ok().ok_or(fault))
    } else {
        is_answered(flow, &[phase.old])
    };
    outcome.with_context(|| format!("{:?}, {}", world.setup(), flow.who))
}

/// Starts or stops the UDP server at the usual port of the pod of `node-a`.
fn serve(worlds: &[World], serves: bool) -> Result<()> {
    for world in worlds {
        let pod = world.rig().pod(0, 1)?;
        let (peer, own) = (pod.peer(), pod.addresses().both());
        if serves {
            peer.serve(Protocol::Udp, &own, TARGET)?;
        } else {
            peer.stop_serving(Protocol::Udp, &own, TARGET)?;
        }
    }
    Ok(())
}

fn publish(server: &SharedApiServer, phase: &Phase) -> Result<()> {
    if phase.objects.is_empty() {
        let words = ["delete", "service", "stale", "--ignore-not-found"];
        return server.control_plane().kubectl(&words).map(drop);
    }
    server.publish(&phase.objects)
}

/// The clients and their questions: a pod and the host use the ClusterIP, an external client the `NodePort` (CT12).
fn asks(row: &Row) -> Result<Vec<(Source, Ask)>> {
    let protocol = if row.is_tcp { Protocol::Tcp } else { Protocol::Udp };
    let mut all = Vec::new();
    for destination in row.destinations {
        let askers: &[Source] = if *destination == Destination::ClusterIp {
            &[Source::Pod, Source::Host]
        } else {
            &[Source::Outside]
        };
        for family in Family::ALL {
            let ask = Ask::new(protocol, frontend(*destination, STALE, family)?).within(PATIENCE);
            all.extend(askers.iter().map(|from| (*from, ask)));
        }
    }
    Ok(all)
}

fn new_flow_is_answered(world: &World, from: Source, ask: Ask, by: Answers) -> Result<()> {
    let mut last = None;
    let peer = world.member(from)?.peer();
    // A question that was sent too early is repeated soon, because an answer takes a millisecond; a test that expects
    // silence waits longer.
    let mut within = 0;
    let answered = wait_until(SOON, "new flows follow", || {
        within = if by == Answers::Nobody { PATIENCE } else { longer(within, PATIENCE) };
        let outcome = peer.ask(ask.within(within));
        let is_so = matches(&outcome, by);
        last = Some(outcome);
        is_so.then_some(())
    });
    answered.with_context(|| format!("{:?}: {from:?} asks {}: {last:?}", world.setup(), ask.to))
}

fn begin<'a>(world: &'a World, row: &Row) -> Result<Vec<Old<'a>>> {
    let begin = |(from, ask): (Source, Ask)| {
        let kept = world.member(from)?.peer().keep(ask)?;
        let who = format!("{from:?} asks {}", ask.to);
        Ok(Old { who, ask, from, kept })
    };
    asks(row)?.into_iter().map(begin).collect()
}

/// Waits until the flow gets one of these answers, and checks that it keeps it.
fn is_answered(flow: &Old<'_>, expected: &[Answers]) -> Result<()> {
    let mut last = None;
    let answered = wait_until(SOON, "the old flow follows", || {
        let outcome = flow.kept.ask();
        let found = expected.iter().find(|by| matches(&outcome, **by));
        last = Some(outcome);
        found.copied()
    });
    let by =
        answered.with_context(|| format!("{:?} {:?}: {last:?}", flow.from, flow.ask.protocol))?;
    // An expected answer may be late; an expected silence needs a short timeout only.
    let patience = if by == Answers::Nobody { PATIENCE } else { LATE };
    for _ in 0..3 {
        let outcome = flow.kept.ask_as(flow.ask.within(patience));
        ensure!(matches(&outcome, by), "{outcome:?} after {by:?}");
    }
    Ok(())
}

fn matches(outcome: &Result<Answer, Failure>, by: Answers) -> bool {
    match (outcome, by) {
        (Ok(answer), Answers::By(name)) => answer.server == name,
        (Err(_), Answers::Nobody) => true,
        (Ok(_), Answers::Nobody) | (Err(_), Answers::By(_)) => false,
    }
}

/// CT8: packets to another port of an external IP that is also an address of the node belong to no Service.
#[test]
fn flows_of_others_to_an_address_of_a_service_are_left_alone() -> Result<()> {
    let server = SharedApiServer::take_over()?;
    server.publish(&services()?)?;
    for proxy in [Proxy::KubeProxy(Mode::Nftables), Proxy::Ours] {
        let world = World::start(Setup::new(proxy, Detector::NodeCidr), &server)?;
        let (node, client) = (world.rig().node(0)?, world.rig().client());
        node.peer().serve(Protocol::Udp, &node.addresses().both(), PLAIN_PORT)?;
        let plain = |family| Ask::udp(node.addresses().socket(family, PLAIN_PORT));
        let kept = Family::ALL.map(|family| client.peer().keep(plain(family)));
        let kept: Vec<Kept<'_>> = kept.into_iter().collect::<Result<_, _>>()?;
        kept.iter().try_for_each(|kept| kept.ask().map(drop))?;
        let own: Vec<_> = node.addresses().both().iter().map(ToString::to_string).collect();
        for row in rows()?.into_iter().filter(|row| row.name.starts_with("CT1:")) {
            for phase in row.phases {
                let mut objects = phase.objects;
                if let Some(service) = objects.first_mut() {
                    service["spec"]["externalIPs"] = own.clone().into();
                }
                server.publish(&objects)?;
                for family in Family::ALL {
                    let ask = Ask::udp(node.addresses().socket(family, 80)).within(PATIENCE);
                    new_flow_is_answered(&world, Source::Outside, ask, phase.new)?;
                }
                for kept in &kept {
                    let answer = kept.ask()?;
                    ensure!(answer.server == "node-a", "{proxy:?}: {answer:?}");
                }
            }
        }
    }
    Ok(())
}
