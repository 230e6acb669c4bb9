//! Datagrams of host processes to a frontend at an address of their node: each has a route of its own in the kernel,
//! which must be freed with the packet, also where the packet leaves by another interface.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask};
use lb_tests::skipped::skipped;
use lb_tests::topology::{Family, Shape};
use lb_tests::traffic::{Ask, Protocol};
use lb_tests::wait::wait_until;

in_both_shapes!(routes_of_datagrams_of_the_host_are_freed);

/// The deadline for the kernel to free routes.
const SOON: Duration = Duration::from_secs(30);
/// The `NodePort`.
const NODE_PORT: u16 = 30_080;
/// Datagrams of the process.
const DATAGRAMS: usize = 20_000;
/// Routes that may be in use besides, of all namespaces.
const OTHERS: usize = DATAGRAMS / 4;

/// The number of IPv4 routes that the kernel has in memory; `None` where it does not list them.
fn routes() -> Result<Option<usize>> {
    let slabs = fs::read_to_string("/proc/slabinfo").context("read /proc/slabinfo")?;
    let is_routes =
        |line: &&str| ["rtable ", "ip_dst_cache "].iter().any(|name| line.starts_with(name));
    let line = slabs.lines().find(is_routes);
    let count = line.and_then(|line| line.split_whitespace().nth(1));
    count.map(|count| count.parse().context("a count in /proc/slabinfo")).transpose()
}

fn routes_of_datagrams_of_the_host_are_freed(shape: Shape) -> Result<()> {
    let Some(before) = routes()? else {
        return skipped("count of routes in /proc/slabinfo");
    };
    let rig = Rig::shared(shape)?;
    let backend = rig.pod(1, 1)?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT).pods(&[backend]);
    let rig = rig.start(&[&web])?;
    let node = rig.node(0)?;
    let to = SocketAddr::new(node.ip(Family::V4), NODE_PORT);
    let answer = ask(node, Ask::new(Protocol::Udp, to))?;
    ensure!(answer.server == rig.pod(1, 1)?.name(), "{answer:?}");
    node.netns().run_in(|| -> Result<()> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        for _ in 0..DATAGRAMS {
            let _sent: usize = socket.send_to(b"one of many", to)?;
        }
        Ok(())
    })??;
    // The kernel frees routes after a grace period.
    let freed =
        || routes().is_ok_and(|now| now.is_some_and(|now| now < before + OTHERS)).then_some(());
    wait_until(SOON, "the routes are freed", freed)
        .with_context(|| format!("{before} routes before, {:?} now", routes()))
}
