//! Ten thousand Services through a real API server: all of them are programmed, one of the last is answered, and the
//! agent's memory stays small.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_tests::cluster::Cluster;
use lb_tests::population::{NAMESPACE, Population};
use lb_tests::rig::ask;
use lb_tests::topology::Shape;
use lb_tests::traffic::Ask;
use lb_tests::wait::wait_until_ok;

const SERVICES: usize = 10_000;
const ENDPOINTS: usize = 3;
const PATIENCE: Duration = Duration::from_mins(5);
/// The memory limit for 10,000 services with three endpoints, in bytes. A debug build needs hardly more.
const MEMORY: u64 = 50 << 20;

#[test]
#[ignore = "a size for its own sake: docs/bench/README.md says how to run it"]
fn ten_thousand_services_of_an_api_server_are_served() -> Result<()> {
    let cluster = Cluster::start(Shape::Routed)?;
    let rig = cluster.rig();
    let began = Instant::now();
    let pods = rig.pods();
    let backends = pods.iter().take(ENDPOINTS).map(|pod| pod.addresses().v4.to_string());
    let backends: Vec<String> = backends.collect();
    let to = Population::default().grow(cluster.control_plane(), SERVICES as u32, &backends)?;
    println!("created in {:?}", began.elapsed());
    let agent = rig.agent(0)?;
    let names = wait_until_ok(PATIENCE, "all of them are programmed", || {
        let names = agent.command(&["service", "list", "-n", NAMESPACE, "-o", "name"])?;
        let count = names.lines().count();
        ensure!(count == SERVICES, "{count} are");
        Ok(names)
    })?;
    println!("programmed after {:?}", began.elapsed());
    ensure!(names.contains("service-9999"), "the last one is missing");
    drop(ask(rig.pod(0, 0)?, Ask::tcp(to))?);
    let status = fs::read_to_string(format!("/proc/{}/status", agent.id()))?;
    let line =
        status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no memory")?;
    let memory = line.trim().trim_end_matches(" kB").parse::<u64>()? << 10;
    println!("{memory} bytes of anonymous memory");
    ensure!(memory < MEMORY, "{memory} bytes");
    Ok(())
}
