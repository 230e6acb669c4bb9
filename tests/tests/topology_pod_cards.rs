//! Interfaces of a pod that exist in the pod only, over an interface of the host: no program sees their packets, so
//! `status` names interface, namespace and remedy.

use std::time::Duration;

use anyhow::{Result, ensure};
use lb_tests::agent::Agent;
use lb_tests::kinds::Kind;
use lb_tests::manifest::Service;
use lb_tests::netns::Netns;
use lb_tests::rig::{Rig, TARGET, ask};
use lb_tests::topology::{Family, Shape, Topology};
use lb_tests::traffic::Ask;
use lb_tests::wait::wait_until_ok;

const SOON: Duration = Duration::from_secs(30);

#[test]
fn macvlan_of_a_pod_is_a_problem_that_names_it() -> Result<()> {
    is_a_problem(Kind::MacVlan, ["macvlan mode bridge"; 2])
}

#[test]
fn ipvlan_of_a_pod_is_a_problem_that_names_it() -> Result<()> {
    is_a_problem(Kind::IpVlan, ["ipvlan mode l2"; 2])
}

#[test]
fn vlan_of_a_pod_is_a_problem_that_names_it() -> Result<()> {
    is_a_problem(Kind::Vlan, ["vlan id 7", "vlan id 8"])
}

/// Beside the pod's veth the interface counts as a second network, as long as the pod's packets to Services do not use
/// it. `status` names it while they do, and if it is the pod's only interface.
fn is_a_problem(kind: Kind, kinds: [&str; 2]) -> Result<()> {
    if kind.is_skipped()? {
        return Ok(());
    }
    let mut rig = Rig::build(Topology::builder(Shape::Routed).nodes(1))?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    rig.manifests().apply(&web)?;
    rig.start_agents(&[])?;
    let mut agent = rig.take_agent(0)?;
    let both = (rig.pod(0, 0)?.netns(), "give the pod a route to them through its veth");
    let node = rig.node(0)?.netns();
    let alone = Netns::new(&format!("{}-alone", node.name()))?;
    let alone = (&alone, "give the pod a veth");
    for (((netns, _), kind), host) in [both, alone].into_iter().zip(kinds).zip(2..) {
        node.ip(&format!("link add net1 link eth0 netns {} type {kind}", netns.name()))?;
        netns.ip(&format!("address add 172.30.0.{host}/24 dev net1\nlink set dev net1 up"))?;
    }
    let is_reported = |agent: &Agent, (netns, remedy): (&Netns, &str), expected: bool| {
        let status = agent.exit_said(&["status"])?;
        let start =
            format!("interface net1 of pod network namespace {} is a macvlan", netns.name());
        let line = status.lines().find(|line| line.contains(&start));
        let is_whole = line.is_none_or(|it| it.contains("over eth0") && it.contains(remedy));
        ensure!(
            line.is_some() == expected && is_whole,
            "expected in status: {expected}, not: {status}"
        );
        Ok(())
    };
    let question = Ask::tcp(web.frontend(Family::V4)).within(2_000);
    // A route for a private network that contains the addresses of Services.
    let route = "route add 10.0.0.0/8 via 172.30.0.1 dev net1";
    for (line, is_routed) in
        [(None, false), (Some(route), true), (Some("route delete 10.0.0.0/8"), false)]
    {
        line.map_or(Ok(()), |line| both.0.ip(line))?;
        // A restarted agent inspects pods at once.
        agent.stop()?;
        agent.start_again()?;
        wait_until_ok(SOON, "status names interface, namespace and remedy", || {
            is_reported(&agent, alone, true)?;
            is_reported(&agent, both, is_routed)?;
            agent.has_problems(1 + usize::from(is_routed))
        })?;
        ensure!(ask(rig.pod(0, 0)?, question).is_ok() != is_routed, "the route decides: {line:?}");
    }
    Ok(())
}
