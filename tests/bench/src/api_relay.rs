//! A relay that gives several topologies one API server: the server's address exists in each of them, and a process
//! behind that address passes every connection on to the server's own namespace.

use std::env;
use std::fs::File;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;

use anyhow::{Context as _, Result};
use lb_tests::control_plane::home;
use lb_tests::netns::NAMES;
use lb_tests::process::Program;
use lb_tests::topology::Topology;
use nix::sched::{CloneFlags, setns};

/// Starts a relay through which `topology` reaches the API server at `address` in the namespace `netns`.
pub(crate) fn start(topology: &Topology, address: SocketAddr, netns: &str) -> Result<Program> {
    let mut command = home(Some(topology.fabric().name()))?.command(&env::current_exe()?)?;
    command.args(["relay", &address.to_string(), netns]);
    Program::spawn("relay", command, &topology.directory("relay")?.join("relay.log"))
}

/// Passes connections to `address` in this namespace on to the same address in the namespace `netns`, until killed.
pub fn run(address: SocketAddr, netns: &str) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("listen at {address}"))?;
    let file = Path::new(NAMES).join(netns);
    let there = File::open(&file).with_context(|| format!("namespace {}", file.display()))?;
    // A socket belongs to the namespace in which it is created; the listener stays in this one.
    setns(&there, CloneFlags::CLONE_NEWNET).with_context(|| format!("enter namespace {netns}"))?;
    loop {
        let (client, _) = listener.accept().context("accept")?;
        // If the server is unreachable, the client's connection ends, as it would without a relay.
        drop(thread::spawn(move || connect(client, address)));
    }
}

fn connect(client: TcpStream, address: SocketAddr) -> io::Result<()> {
    let server = TcpStream::connect(address)?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    let back = (server.try_clone()?, client.try_clone()?);
    drop(thread::spawn(move || hand_on(back.0, back.1)));
    hand_on(client, server)
}

fn hand_on(mut from: TcpStream, mut to: TcpStream) -> io::Result<()> {
    let copied = io::copy(&mut from, &mut to);
    to.shutdown(Shutdown::Write)?;
    copied.map(drop)
}
