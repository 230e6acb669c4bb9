//! Health check ports: many bad clients that hold connections open and reconnect keep no probe from its answer, and
//! loopback addresses are probed where they are listed.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use lb_tests::agent::Agent;
use lb_tests::campaign;
use lb_tests::http;
use lb_tests::rig::Rig;
use lb_tests::topology::{Family, Member, Shape, Topology};
use lb_tests::wait::{self, wait_until_ok};
use serde_json::{Value, json};

const CHECK: u16 = 30_999;
const SOON: Duration = Duration::from_mins(1);
/// Prefixes of requests that never end, and bytes that are not a request.
const BEGINNINGS: [&[u8]; 4] =
    [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\nX: ", b"\x16\x03\x01"];

/// Bad clients with one address: they hold their connections open, and reconnect when one is closed.
#[derive(Default)]
struct Crowd {
    is_over: AtomicBool,
    /// The number of connections so far.
    made: AtomicU64,
}

impl Crowd {
    fn stay(&self, server: SocketAddr, clients: usize) {
        let mut all: Vec<Option<TcpStream>> = Vec::new();
        all.resize_with(clients, || None);
        while !self.is_over.load(Ordering::Relaxed) {
            for (number, client) in all.iter_mut().enumerate() {
                if client.as_mut().is_none_or(is_ended) {
                    *client = self.come(server, number).ok();
                }
            }
            wait::pass(Duration::from_millis(1));
        }
    }

    fn come(&self, server: SocketAddr, number: usize) -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect_timeout(&server, SOON)?;
        stream.set_nonblocking(true)?;
        stream.write_all(BEGINNINGS[number % BEGINNINGS.len()])?;
        let _before: u64 = self.made.fetch_add(1, Ordering::Relaxed);
        Ok(stream)
    }
}

fn is_ended(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 64];
    match stream.read(&mut bytes) {
        Ok(length) => length == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// Good probes come from the address of the bad clients, and from another node.
#[test]
fn bad_clients_that_come_back_keep_no_probe_from_its_answer() -> Result<()> {
    let (clients, probes) = campaign::size((300, 33), (1_000, 1_000));
    let _limits: (u64, u64) = lb_agent::syscall::raise_open_files()?;
    let rig = Rig::shared(Shape::Routed)?;
    let rig = rig.start(&[])?;
    rig.manifests().write("checked", &[checked()])?;
    for family in Family::ALL {
        let server = rig.node(0)?.addresses().socket(family, CHECK);
        let probe = |from: &Member| {
            let (status, body) = http::get(from.home(), server, "/healthz")?;
            ensure!(status == 503 && body.contains("checked"), "{status}: {body}");
            Ok(())
        };
        wait_until_ok(SOON, "the port answers", || probe(rig.client()))?;
        let crowd = Crowd::default();
        let outcome = thread::scope(|scope| {
            let home = rig.client().home();
            let bad = scope.spawn(|| home.run_in(|| crowd.stay(server, clients)));
            let good = (|| {
                wait_until_ok(SOON, "the bad clients are connected", || {
                    ensure!(crowd.made.load(Ordering::Relaxed) >= clients as u64, "not all yet");
                    Ok(())
                })?;
                for _ in 0..probes {
                    probe(rig.client())?;
                    probe(rig.node(1)?)?;
                }
                Ok::<_, anyhow::Error>(())
            })();
            crowd.is_over.store(true, Ordering::Relaxed);
            bad.join().map_err(|_panic| anyhow!("the crowd ended early"))??;
            good
        });
        outcome?;
        let made = crowd.made.into_inner();
        campaign::figure(
            &format!("connections of {clients} bad clients, {family:?}"),
            made,
            "connections",
        );
        campaign::figure(
            &format!("good probes beside them, all answered, {family:?}"),
            2 * probes,
            "probes",
        );
    }
    Ok(())
}

fn checked() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "checked"},
        "spec": {
            "type": "LoadBalancer", "externalTrafficPolicy": "Local", "clusterIP": "10.96.0.90",
            "ports": [{"port": 80}], "healthCheckNodePort": CHECK,
        },
    })
}

/// As in kube-proxy. Other addresses of the node are not probed then.
#[test]
fn loopback_address_that_is_listed_is_probed() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed))?;
    rig.start_agents(&["--nodeport-addresses=127.0.0.0/8,::1/128"])?;
    rig.manifests().write("checked", &[checked()])?;
    let node = rig.node(0)?;
    for (family, loopback) in Family::ALL.into_iter().zip(["127.0.0.1", "::1"]) {
        let to = SocketAddr::new(loopback.parse()?, CHECK);
        wait_until_ok(SOON, "the port answers", || {
            let (status, body) = http::get(node.home(), to, "/")?;
            ensure!(status == 503 && body.contains("checked"), "{status}: {body}");
            Ok(())
        })?;
        let other = http::get(node.home(), node.addresses().socket(family, CHECK), "/");
        ensure!(other.is_err(), "answered at another address: {other:?}");
    }
    Ok(())
}

/// Load balancers leave the node out, so `status` must say why.
#[test]
fn port_of_a_health_check_that_a_process_holds_is_a_problem() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed))?;
    rig.start_agents(&[])?;
    let (node, agent) = (rig.node(0)?, rig.agent(0)?);
    let holds = SocketAddr::new(node.addresses().v4.into(), CHECK);
    let holder = node.netns().run_in(|| TcpListener::bind(holds))??;
    rig.manifests().write("checked", &[checked()])?;
    wait_until_ok(SOON, "status names the port", || {
        let status = agent.exit_said(&["status"])?;
        let problem =
            format!("the health check of Service default/checked is not answered on {holds}");
        ensure!(status.contains(&problem), "{status}");
        agent.has_problems(1)
    })?;
    drop(holder);
    wait_until_ok(SOON, "status names no port", || agent.has_problems(0))?;
    let (status, _) = http::get(node.home(), holds, "/")?;
    ensure!(status == 503, "the port answers {status}");
    Ok(())
}

/// The kubelet, or a scraper, gets the answers of another process meanwhile.
#[test]
fn address_of_a_server_that_a_process_holds_is_a_problem() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed).nodes(1))?;
    let holder = rig.node(0)?.netns().run_in(|| TcpListener::bind(Agent::metrics_address()))??;
    rig.start_agents(&[])?;
    let agent = rig.agent(0)?;
    wait_until_ok(SOON, "status names the address", || {
        let status = agent.exit_said(&["status"])?;
        ensure!(status.contains("the metrics server cannot listen on"), "{status}");
        Ok(())
    })?;
    drop(holder);
    wait_until_ok(SOON, "status names no problem", || agent.has_problems(0))
}
