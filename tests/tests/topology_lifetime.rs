//! What the life of an agent leaves on its node: it ends within a second of SIGTERM, and no sysctl is another.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, matrix};
use lb_tests::topology::{Node, Shape, Topology};
use lb_tests::traffic::Ask;

/// From SIGTERM to the end.
const SHUTDOWN: Duration = Duration::from_secs(1);

#[test]
fn agent_ends_within_a_second_and_changes_no_sysctl() -> Result<()> {
    let rig = Rig::build(Topology::builder(Shape::Routed))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(30_080).pods(&rig.pods());
    let before = sysctls(rig.node(0)?)?;
    let mut rig = rig.start(&[&web])?;
    let mut agent = rig.take_agent(0)?;
    let mut stops = Vec::new();
    for _ in 0..3 {
        for (family, protocol) in matrix() {
            drop(ask(rig.pod(0, 0)?, Ask::new(protocol, web.frontend(family)))?);
        }
        let began = Instant::now();
        agent.stop()?;
        stops.push(began.elapsed());
        agent.start_again()?;
    }
    let quickest = stops.iter().min().context("it was never stopped")?;
    println!("stopped within {quickest:?}");
    // Beside compilers the scheduler alone may take a second: one of them has to be quick.
    ensure!(*quickest < SHUTDOWN, "{stops:?}");
    agent.stop()?;
    drop(agent.command(&["cleanup"])?);
    let after = sysctls(rig.node(0)?)?;
    let changed = before.iter().filter(|(path, value)| after.get(*path) != Some(value));
    let changed: Vec<_> = changed.collect();
    ensure!(changed.is_empty(), "sysctls are others: {changed:?}");
    Ok(())
}

/// Every setting of a node's network. What counts or is drawn at random is no setting.
fn sysctls(node: &Node) -> Result<BTreeMap<PathBuf, String>> {
    const NO_SETTINGS: [&str; 3] = ["nf_conntrack_count", "stable_secret", "tcp_fastopen_key"];
    let read = || {
        let (mut found, mut folders) = (BTreeMap::new(), vec![PathBuf::from("/proc/sys/net")]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder)? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if !NO_SETTINGS.iter().any(|name| path.ends_with(name))
                    && let Ok(value) = fs::read_to_string(&path)
                {
                    drop(found.insert(path, value));
                }
            }
        }
        anyhow::Ok(found)
    };
    let found = node.netns().run_in(read)??;
    ensure!(found.len() > 100, "only {} settings", found.len());
    Ok(found)
}
