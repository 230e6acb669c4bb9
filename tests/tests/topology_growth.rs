//! Maps that the Services outgrow while the agent runs: it restarts in place with larger ones, under traffic, and
//! `status` finds it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_agent::maps::SHAPES;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask};
use lb_tests::topology::{Family, Shape, Topology};
use lb_tests::traffic::{Ask, PAUSE};
use lb_tests::wait::wait_until_ok;

/// An agent restarts with larger maps only after it has run for 20 s.
const LATER: Duration = Duration::from_secs(90);
/// The first of the source ranges that no client is in.
const UNUSED: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 0);
const VIP: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));

#[test]
fn outgrown_map_is_replaced_under_traffic() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed).nodes(1))?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    rig.manifests().apply(&web)?;
    rig.start_agents(&[])?;
    let mut loads = Vec::new();
    for kept in [true, false] {
        let question = Ask::tcp(web.frontend(Family::V4));
        loads.push(rig.pod(0, 0)?.peer().load(question, kept, PAUSE)?);
    }
    let shape = SHAPES.iter().find(|shape| shape.name == "SOURCE_RANGES").context("the map")?;
    let unused = (0..shape.entries).map(|number| Ipv4Addr::from(u32::from(UNUSED) + number));
    let (client, node) = (rig.client().addresses().v4, rig.node(0)?.addresses().v4);
    rig.client().netns().ip(&format!("route add {VIP}/32 via {node}"))?;
    let ranges: Vec<String> = unused.chain([client]).map(|ip| format!("{ip}/32")).collect();
    let ranges: Vec<&str> = ranges.iter().map(String::as_str).collect();
    let large = Service::new("large", 11)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    rig.manifests().apply(&large.load_balancer(&[VIP], &ranges))?;
    let agent = rig.agent(0)?;
    let question = Ask::tcp(SocketAddr::new(VIP, 80)).within(500);
    let is_refused = || -> Result<bool> { Ok(agent.metric(&["lb_refused_service_ports"])? > 0.5) };
    wait_until_ok(LATER, "the Service is refused: the map is full", || {
        ensure!(is_refused()?, "it has room");
        Ok(())
    })?;
    let runs = format!("running (process {})", agent.id());
    wait_until_ok(LATER, "the agent has restarted in place, and the Service has room", || {
        ensure!(!is_refused()?, "it is refused");
        let status = agent.command(&["status"])?;
        ensure!(status.contains(&runs), "{status}");
        drop(ask(rig.client(), question)?);
        Ok(())
    })?;
    for load in loads {
        load.finish_without_loss()?;
    }
    Ok(())
}
