//! Connections beside a take-over from kube-proxy: those whose backend left their Service and serves another one. The
//! rules are written by hand.

use std::time::Duration;

use anyhow::{Result, ensure};
use lb_tests::agent::{Agent, Source};
use lb_tests::control_plane::kube_proxy::by_hand::{self, Way};
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET};
use lb_tests::topology::{Family, Shape, Topology};
use lb_tests::traffic::Ask;
use lb_tests::wait::wait_until_ok;

/// How long anything may take that a test waits for.
const SOON: Duration = Duration::from_mins(1);

/// A node with two Services and one more pod, the first, that asks. Both Services have the second pod,
/// and the rules send there what is meant for the first one, which has the third pod as well.
fn rig() -> Result<(Rig, [Service; 2])> {
    let rig = Rig::build(Topology::builder(Shape::Routed).nodes(1).pods(3))?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[rig.pod(0, 1)?, rig.pod(0, 2)?]);
    let other = Service::new("other", 11)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    rig.manifests().apply(&web)?;
    rig.manifests().apply(&other)?;
    let (node, pod) = (rig.node(0)?.netns(), rig.pod(0, 1)?.addresses());
    let way = |family| -> Way { (web.frontend(family), pod.socket(family, TARGET)) };
    by_hand::write(node, "kube-proxy", &Family::ALL.map(way))?;
    node.remember_datagrams(300)?;
    Ok((rig, [web, other]))
}

fn start(rig: &Rig) -> Result<Agent> {
    Agent::start(rig.node(0)?, Source::Manifests(rig.manifests().directory()), &[])
}

#[test]
fn datagrams_leave_a_backend_that_serves_another_service() -> Result<()> {
    let (rig, [web, _]) = rig()?;
    let questions = Family::ALL.map(|family| Ask::udp(web.frontend(family)));
    let open = questions.map(|question| rig.pod(0, 0)?.peer().keep(question).map_err(Into::into));
    let open = open.into_iter().collect::<Result<Vec<_>>>()?;
    let is_answered_by = |server: &str| {
        for socket in &open {
            let answer = socket.ask()?;
            ensure!(answer.server == server, "{answer:?}");
        }
        Ok(())
    };
    is_answered_by("pod-a2")?;
    let _agent = start(&rig)?;
    is_answered_by("pod-a2")?;
    rig.manifests().apply(&web.pods(&[rig.pod(0, 2)?]))?;
    wait_until_ok(SOON, "the other backend answers", || is_answered_by("pod-a3"))
}
