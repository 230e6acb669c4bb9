//! The end of TCP connections, whichever side closes first, and whichever FIN or last ACK is lost: both sides read all
//! data and no reset, no side sends a reset, and no flow stays. The same for a connection that only one side closes,
//! when its time is over; netfilter does not forget it earlier.

use std::io::Write as _;
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_tests::campaign;
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{self, Rig};
use lb_tests::topology::{Family, Member, Shape, Topology};
use lb_tests::traffic::closing::{self, Path, rest};
use lb_tests::wait;

in_both_shapes!(
    connections_end_well,
    half_closed_connections_expire,
    late_replies_are_not_masqueraded
);

/// The port of the servers in this file.
const PORT: u16 = 9_100;
const NAMES: [&str; 2] = ["near", "far"];
const NODE_PORTS: [u16; 2] = [30_080, 30_081];
/// Longer than [`SHORT`] seconds, for which netfilter remembers a half-closed connection if no agent raises them.
const FORGOTTEN: Duration = Duration::from_secs(4);
const SHORT: &str = "1";
const CLOSE_WAIT: &str = "net.netfilter.nf_conntrack_tcp_timeout_close_wait";
/// The length in bytes of the answer after a half-close: several TCP windows.
const SIZE: usize = 200_000;

fn start(shape: Shape, flags: &[&str]) -> Result<(Rig, [Service; 2])> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    let services = apply(&rig)?;
    rig.start_agents(flags)?;
    Ok((rig, services))
}

/// Starts a Service with a local backend, and one with a remote one.
fn apply(rig: &Rig) -> Result<[Service; 2]> {
    let service = |at: usize| -> Result<Service> {
        let service = Service::new(NAMES[at], 10 + at as u8)?.port(80, PORT);
        Ok(service.node_port(NODE_PORTS[at]).pods(&[rig.pod(at, 1)?]))
    };
    let services = [service(0)?, service(1)?];
    services.iter().try_for_each(|service| rig.manifests().apply(service))?;
    Ok(services)
}

/// Paths through `ClusterIP`s and `NodePort`s, to a local and to a remote backend.
fn paths<'a>(rig: &'a Rig, services: &[Service; 2], family: Family) -> Result<Vec<Path<'a>>> {
    let mut all = Vec::new();
    for (at, service) in services.iter().enumerate() {
        let backend = rig.pod(at, 1)?;
        all.extend(Path::all(rig, (service, NODE_PORTS[at]), (backend, PORT), family)?);
    }
    Ok(all)
}

fn connections_end_well(shape: Shape) -> Result<()> {
    let (rig, services) = start(shape, &[])?;
    let mut all = Vec::new();
    for family in Family::ALL {
        all.extend(paths(&rig, &services, family)?);
    }
    Path::patient_ends(&all, closing::PATIENCE)?;
    both_ends_close_at_once(&all, shape)?;
    both_ends_close_after_a_burst(&all, shape)?;
    Path::patient_ends(&all, closing::USUAL_PATIENCE)?;
    one_end_closes_long_before_the_other(&all, shape)?;
    NAMES.iter().try_for_each(|name| rig.agent(0)?.until_no_flow(name, PORT))
}

fn both_ends_close_at_once(paths: &[Path<'_>], shape: Shape) -> Result<()> {
    let times = campaign::size(30, 250);
    for path in paths {
        let before = path.resets()?;
        for _ in 0..times {
            path.both_close_at_once()?;
        }
        ensure!(path.resets()? == before, "{}: an end has sent resets", path.to);
    }
    campaign::figure(&format!("closed by both ends at once, {shape:?} pods"), 8 * times, "times");
    Ok(())
}

/// Both ends send several windows at once and close behind them, all within one tick of the data path: no packet may be
/// the only one whose acknowledgement it has recorded.
fn both_ends_close_after_a_burst(paths: &[Path<'_>], shape: Shape) -> Result<()> {
    let times = campaign::size(10, 250);
    let exchange = |end: &TcpStream| -> Result<usize> {
        thread::scope(|scope| {
            let sent = scope.spawn(move || -> Result<()> {
                let mut out = end;
                out.write_all(&vec![b'.'; 2 * SIZE])?;
                Ok(end.shutdown(Shutdown::Write)?)
            });
            let read = rest(end)?;
            sent.join().map_err(|_panic| anyhow!("an end ended early"))??;
            Ok(read)
        })
    };
    for path in paths {
        for _ in 0..times {
            let [one, other] = path.connect()?;
            let read = thread::scope(|scope| {
                let other = scope.spawn(|| exchange(&other));
                let one = exchange(&one)?;
                let other = other.join().map_err(|_panic| anyhow!("an end ended early"))??;
                Ok::<_, anyhow::Error>([one, other])
            })
            .with_context(|| format!("{}", path.to))?;
            ensure!(read == [2 * SIZE; 2], "{}: {read:?} bytes", path.to);
        }
    }
    campaign::figure(
        &format!("closed after a burst of both ends, {shape:?} pods"),
        8 * times,
        "times",
    );
    Ok(())
}

/// Drops the first FIN that arrives at a member.
fn lose_the_first_end(member: &Member) -> Result<()> {
    let rules = "table inet ends; delete table inet ends; \
                 table inet ends { chain input { type filter hook input priority 0; \
                 tcp flags & fin == fin limit rate 1/day burst 1 packets counter drop; }; }";
    member.netns().tool_fed("nft", &["-f", "-"], rules).map(drop)
}

/// Drops what a member receives in a connection within 100 ms after its own FIN, which includes the ACK of the FIN.
fn lose_the_last_answer(member: &Member) -> Result<()> {
    let rules = "table inet ends; delete table inet ends; \
                 table inet ends { set ended { type inet_service; flags dynamic, timeout; }; \
                 chain output { type filter hook output priority 0; \
                 tcp flags & fin == fin add @ended { tcp dport timeout 100ms }; }; \
                 chain input { type filter hook input priority 0; \
                 tcp sport @ended counter drop; }; }";
    member.netns().tool_fed("nft", &["-f", "-"], rules).map(drop)
}

fn lose_none(member: &Member) -> Result<()> {
    let lost = member.netns().tool("nft", &["list", "table", "inet", "ends"])?;
    ensure!(!lost.contains("counter packets 0 "), "nothing was dropped: {lost}");
    member.netns().tool("nft", &["delete", "table", "inet", "ends"]).map(drop)
}

/// Makes a member lose a part of each connection that ends.
type Lose = fn(&Member) -> Result<()>;

fn one_end_closes_long_before_the_other(paths: &[Path<'_>], shape: Shape) -> Result<()> {
    let times = campaign::size(2, 60);
    for path in paths {
        let before = path.resets()?;
        for _ in 0..times {
            path.half_close(SIZE)?;
        }
        let losses: [(&Member, Lose); 3] = [
            (path.server, lose_the_first_end),
            (path.client, lose_the_first_end),
            (path.server, lose_the_last_answer),
        ];
        for (member, lose) in losses {
            for _ in 0..times {
                lose(member)?;
                path.half_close(SIZE)?;
            }
            lose_none(member)?;
        }
        ensure!(path.resets()? == before, "{}: an end has sent resets", path.to);
    }
    campaign::figure(&format!("half-closed downloads, {shape:?} pods"), 32 * times, "downloads");
    Ok(())
}

/// The sweep removes protected entries, and with them the copies that they left when they became protected.
fn half_closed_connections_expire(shape: Shape) -> Result<()> {
    let (rig, services) = start(shape, &["--conntrack-tcp-timeout-close-wait=2s"])?;
    for family in Family::ALL {
        let paths = paths(&rig, &services, family)?;
        let mut open = Vec::new();
        for path in &paths {
            let [client, server] = path.connect()?;
            client.shutdown(Shutdown::Write)?;
            ensure!(rest(&server)? == 0, "{}: bytes behind the first one", path.to);
            open.push([client, server]);
        }
        for node in 0..2 {
            for name in NAMES {
                rig.agent(node)?.until_no_flow(name, PORT)?;
            }
        }
        drop(open);
    }
    Ok(())
}

/// A CNI masquerades packets of pods to the client. The server replies after the time for which netfilter remembered
/// half-closed connections before the agent started: a reply of a forgotten one would get another source port.
fn late_replies_are_not_masqueraded(shape: Shape) -> Result<()> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    let [near, _] = apply(&rig)?;
    let node = rig.node(0)?;
    let backend = rig.pod(0, 1)?.addresses().both();
    rig::masquerade(node, backend, rig.client(), "40000-41000")?;
    node.netns().sysctl(CLOSE_WAIT, SHORT)?;
    rig.start_agents(&[])?;
    let raised = rig.node(0)?.netns().tool("sysctl", &["-n", CLOSE_WAIT])?;
    ensure!(raised.trim() == "3600", "the agent has set {raised}");
    let mut open = Vec::new();
    for family in Family::ALL {
        let [_, path] = Path::all(&rig, (&near, NODE_PORTS[0]), (rig.pod(0, 1)?, PORT), family)?;
        let [client, server] = path.connect()?;
        client.shutdown(Shutdown::Write)?;
        ensure!(rest(&server)? == 0, "{}: bytes behind the first one", path.to);
        open.push((path.to, client, server));
    }
    wait::pass(FORGOTTEN);
    for (to, client, mut server) in open {
        server.write_all(b"late")?;
        drop(server);
        ensure!(rest(&client).with_context(|| format!("{to}"))? == 4, "{to}: a part of the reply");
    }
    Ok(())
}
