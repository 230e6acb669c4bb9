//! One unconnected UDP socket that asks two Services with a common backend, with questions to both under way at once:
//! only the translation can tell which Service an answer belongs to.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::join_all::join_all;
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::rig::{Rig, TARGET};
use lb_tests::topology::{Family, Member, Shape, Topology};

/// The number of questions to each of two Services.
const TIMES: u32 = 1_000;

in_both_shapes!(every_answer_comes_from_the_service_that_was_asked);

fn every_answer_comes_from_the_service_that_was_asked(shape: Shape) -> Result<()> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    // Backends of every kind: a pod and the host of node-a, and a pod of node-b.
    let ends = [Endpoint::pod(rig.pod(0, 1)?), Endpoint::host(rig.node(0)?)];
    let ends = ends.into_iter().chain([Endpoint::pod(rig.pod(1, 1)?)]);
    let mut pairs = Vec::new();
    for (end, index) in ends.zip([10, 12, 14]) {
        let service = |index: u8| -> Result<Service> {
            let service = Service::new(&format!("service-{index}"), index)?;
            Ok(service.port(80, TARGET).endpoints([end.clone()]))
        };
        let pair = [service(index)?, service(index + 1)?];
        pair.iter().try_for_each(|service| rig.manifests().apply(service))?;
        pairs.push(pair);
    }
    for setting in ["", "socketLB: 'off'", "socketLB: all"] {
        let config = rig.configuration(setting)?;
        rig.start_agents(&[&config])?;
        for pair in &pairs {
            for family in Family::ALL {
                let to = pair.each_ref().map(|service| service.frontend(family));
                let askers: [&Member; 2] = [rig.pod(0, 0)?, rig.node(0)?.host()];
                let done = join_all(askers.map(|from| move || is_answered(from, to)));
                drop(done.map_err(|error| error.context(format!("setting {setting:?}")))?);
            }
        }
        for _ in 0..rig.topology().nodes().len() {
            rig.take_agent(0)?.stop()?;
        }
    }
    Ok(())
}

fn is_answered(from: &Member, to: [SocketAddr; 2]) -> Result<()> {
    let tally = from.peer().ask_both(to, TIMES)?;
    let expected = to.map(|to| (to.to_string(), u64::from(TIMES)));
    let is_right = tally.failed() == 0 && tally.servers == expected.into();
    ensure!(is_right, "{}: {tally:?}", from.name());
    Ok(())
}
