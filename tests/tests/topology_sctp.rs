//! Associations of real SCTP sockets, which send several packets as one: a list of packets behind one header
//! (`GSO_BY_FRAGS`). Kernels without SCTP skip this test; `cargo xtask kernels` runs it on those that have it.

use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET};
use lb_tests::skipped::skipped;
use lb_tests::topology::{Family, Member, Pod, Shape, Topology};
use nix::errno::Errno;
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};

in_both_shapes!(large_messages_arrive_whole, large_messages_arrive_whole_in_segments);

/// Bytes of a message: many packets, which the socket sends as few as it may.
const MESSAGE: usize = 40_000;
/// Messages in each direction.
const MESSAGES: usize = 20;
/// The deadline for a message. Within one machine they take milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// Opens an SCTP socket of the kernel, one for each association.
fn socket(member: &Member, at: SocketAddr) -> Result<Socket> {
    let open = || -> io::Result<Socket> {
        let sctp = Protocol::from(libc::IPPROTO_SCTP);
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(sctp))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(socket)
    };
    member.netns().run_in(open)?.with_context(|| format!("{} opens an SCTP socket", member.name()))
}

/// Whether the kernel has no SCTP sockets. If so, this prints the reason, and the test must return.
fn is_skipped() -> Result<bool> {
    let sctp = Protocol::from(libc::IPPROTO_SCTP);
    match Socket::new(Domain::IPV4, Type::STREAM, Some(sctp)) {
        Ok(_) => return Ok(false),
        Err(error) if error.raw_os_error() == Some(Errno::EPROTONOSUPPORT as i32) => {}
        Err(error) => bail!("open an SCTP socket: {error}"),
    }
    skipped("SCTP sockets")?;
    Ok(true)
}

/// Byte `at` of all messages: a pattern in which no packet repeats another.
const fn byte(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 16) as u8
}

/// Sends all messages.
fn send(mut socket: &Socket) -> Result<()> {
    for message in 0..MESSAGES {
        let bytes: Vec<u8> = (0..MESSAGE).map(|at| byte(message * MESSAGE + at)).collect();
        socket.write_all(&bytes).with_context(|| format!("send message {message}"))?;
    }
    Ok(())
}

/// Receives all messages, and compares every byte.
fn receive(mut socket: &Socket) -> Result<()> {
    let (mut got, mut buffer) = (0, vec![0; MESSAGE]);
    while got < MESSAGE * MESSAGES {
        let length = socket.read(&mut buffer).with_context(|| format!("after {got} bytes"))?;
        ensure!(length > 0, "the association ended after {got} bytes");
        let wrong = buffer[..length].iter().zip(got..).position(|(it, at)| *it != byte(at));
        ensure!(wrong.is_none(), "byte {} is another", got + wrong.unwrap_or_default());
        got += length;
    }
    Ok(())
}

/// Sends messages from a pod to a Service; its backend replies with as many.
fn exchange(client: &Member, server: &Member, to: SocketAddr, at: SocketAddr) -> Result<()> {
    let listening = socket(server, at)?;
    listening.bind(&at.into()).with_context(|| format!("bind {at}"))?;
    listening.listen(1).context("listen")?;
    let asking = socket(client, to)?;
    asking.connect_timeout(&to.into(), PATIENCE).with_context(|| format!("connect to {to}"))?;
    let (asked, _) = listening.accept().context("accept")?;
    asked.set_read_timeout(Some(PATIENCE))?;
    asked.set_write_timeout(Some(PATIENCE))?;
    for (from, to) in [(&asking, &asked), (&asked, &asking)] {
        thread::scope(|scope| {
            let sending = scope.spawn(|| send(from));
            receive(to)?;
            sending.join().expect("no panic")
        })?;
    }
    Ok(())
}

/// Writes a Service with an SCTP port and one backend.
fn write(rig: &Rig, name: &str, number: u8, backend: &Pod) -> Result<Service> {
    let service = Service::new(name, number)?.port(80, TARGET).pods(&[backend]);
    let text = serde_json::to_string(&service.objects())?;
    let text = text.replace("UDP", "SCTP").replace("udp-", "sctp-");
    let objects: Vec<Value> = serde_json::from_str(&text)?;
    rig.manifests().write(name, &objects)?;
    Ok(service)
}

/// Exchanges messages with a backend on this node and with one on another node. `in_segments`: the interfaces of nodes
/// take no lists of packets, so the kernel divides them behind the programs.
fn messages(shape: Shape, in_segments: bool) -> Result<()> {
    if is_skipped()? {
        return Ok(());
    }
    let mut rig = Rig::build(Topology::builder(shape))?;
    let here = write(&rig, "here", 10, rig.pod(0, 1)?)?;
    let there = write(&rig, "there", 11, rig.pod(1, 1)?)?;
    rig.start_agents(&[])?;
    if in_segments {
        for node in [rig.node(0)?, rig.node(1)?] {
            let links = node.netns().tool("ip", &["-o", "link", "show"])?;
            for name in links.lines().filter_map(|line| line.split([':', '@']).nth(1)) {
                node.netns().ip(&format!("link set dev {} gso_max_segs 1", name.trim()))?;
            }
        }
    }
    for (node, service) in [(0, &here), (1, &there)] {
        for family in Family::ALL {
            let server = rig.pod(node, 1)?;
            let at = SocketAddr::new(server.ip(family), TARGET);
            exchange(rig.pod(0, 0)?, server, service.frontend(family), at)
                .with_context(|| format!("{family}, backend on node {node}"))?;
        }
    }
    Ok(())
}

fn large_messages_arrive_whole(shape: Shape) -> Result<()> {
    messages(shape, false)
}

fn large_messages_arrive_whole_in_segments(shape: Shape) -> Result<()> {
    messages(shape, true)
}
