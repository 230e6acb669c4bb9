//! A flood of new flows fills the flow table to the last half: no flow in use breaks, the rest is refused under
//! its own reason, and ageing frees the room by itself.

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_common::fake::{Datagram, Transport, at};
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, askers, matrix};
use lb_tests::topology::{Family, Shape, Topology};
use lb_tests::traffic::{Ask, Handmade, Kept};
use lb_tests::wait::{try_wait_until, wait_until_ok};

/// Halves of flows that there is room for.
const ROOM: u32 = 4_096;
/// New flows that the flood tries: each takes two halves at least.
const FLOOD: u16 = 8_000;
const NODE_PORT: u16 = 30_080;
const FLOOD_PORT: u16 = 30_081;
/// Datagram flows are over after some seconds of silence here; a sweep comes every few.
const AGED: Duration = Duration::from_mins(2);

in_both_shapes!(a_flood_breaks_no_flow_in_use_and_is_refused_by_name);

fn rig(shape: Shape) -> Result<(Rig, [Service; 2])> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT).pods(&rig.pods());
    let flooded = Service::new("flooded", 11)?.port(80, TARGET).node_port(FLOOD_PORT);
    let flooded = flooded.pods(&[rig.pod(0, 1)?]);
    rig.manifests().apply(&web)?;
    rig.manifests().apply(&flooded)?;
    let config = rig.configuration("timeouts: {udp: 2s, udpStream: 8s}")?;
    let room = format!("FLOWS={ROOM}");
    rig.start_agents(&[&config, "--map-size", &room])?;
    Ok((rig, [web, flooded]))
}

/// Connections and datagram flows of everybody, through every kind of frontend.
fn in_use<'a>(rig: &'a Rig, web: &Service) -> Result<Vec<(String, Kept<'a>)>> {
    let mut all = Vec::new();
    for (from, question) in askers(rig, web, NODE_PORT)? {
        for _ in 0..4 {
            let kept = from.peer().keep(question)?;
            drop(kept.ask()?);
            let Ask { to, protocol, .. } = question;
            all.push((format!("{} asks {to} through {protocol}", from.name()), kept));
        }
    }
    Ok(all)
}

fn all_answer(flows: &[(String, Kept<'_>)], when: &str) -> Result<()> {
    for (who, kept) in flows {
        let answer = kept.ask().with_context(|| format!("{when}: {who}"))?;
        ensure!(answer.server.starts_with("pod-"), "{when}: {who}: {answer:?}");
    }
    Ok(())
}

fn a_flood_breaks_no_flow_in_use_and_is_refused_by_name(shape: Shape) -> Result<()> {
    let (rig, [web, _]) = rig(shape)?;
    let agent = rig.agent(0)?;
    let flows = in_use(&rig, &web)?;
    let target = rig.node(0)?.addresses().socket(Family::V4, FLOOD_PORT);
    let own = rig.client().addresses();
    let hand = Handmade::open(rig.client(), own.socket(Family::V4, 25_999))?;
    let refused = || agent.metric(&["lb_drops", "flow_table_full"]);
    let used = || agent.metric(&["lb_map_entries", "\"FLOWS4\""]);
    // Round after round, since flows of before age while the flood goes on.
    let mut halves = 0.0;
    try_wait_until(Duration::from_mins(4), "the table is full", || {
        for port in 1_024..1_024 + FLOOD {
            let from = own.socket(Family::V4, port);
            let [from, to] = [from, target].map(|end| at(&end.to_string()));
            let datagram = Datagram::new(from, to, Transport::Udp(true)).with(b"ask 0 \n");
            hand.send(&datagram, target)?;
            // Before a flow in use has been silent for long, however slow this goes.
            if port % 1_000 == 0 {
                all_answer(&flows, "while the table fills")?;
            }
        }
        halves = used()?.max(halves);
        all_answer(&flows, "while the table fills")?;
        let is_full = refused()? >= f64::from(FLOOD) / 4.0 && halves >= f64::from(ROOM) * 0.95;
        Ok(is_full.then_some(()))
    })?;
    let drops = refused()?;
    all_answer(&flows, "while the table is full")?;
    writeln!(
        std::io::stdout(),
        "{} flows in use answer at {halves} of {ROOM} halves; {drops} new flows were refused",
        flows.len()
    )?;
    wait_until_ok(AGED, "ageing frees the room", || {
        ensure!(used()? < f64::from(ROOM) * 0.5, "{} halves are used", used()?);
        all_answer(&flows, "while the flood ages")
    })?;
    for (family, protocol) in matrix() {
        let node_port = Ask::new(protocol, rig.node(0)?.addresses().socket(family, NODE_PORT));
        drop(ask(rig.client(), node_port)?);
        drop(ask(rig.pod(0, 0)?, Ask::new(protocol, web.frontend(family)))?);
    }
    all_answer(&flows, "at the end")
}
