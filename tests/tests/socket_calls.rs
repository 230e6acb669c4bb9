//! System calls of real sockets through the hooks in the kernel, and the same calls on this host: the process gets the
//! same result, and `AFFINITY` holds the same entries.
//!
//! `BPF_PROG_TEST_RUN` cannot run programs of this kind.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use lb_agent::reconcile::Op;
use lb_agent::syscall::netns_cookie;
use lb_common::addr::{Endpoint, Ip, Port, Protocol};
use lb_common::fake::{Fake, at, world};
use lb_common::flow::{Affinity, Client, Peer};
use lb_common::forward::Choice;
use lb_common::forward::socket::{self, Call, Outcome};
use lb_common::service::{Flags, Service};
use lb_tests::differential::hooks::{Cgroup, attach};
use lb_tests::differential::{Kernel, bpf};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::IpBindAddressNoPort;
use socket2::{Domain, SockRef, Socket, Type};

/// Backends on this machine, for both families.
const BACKENDS: [&str; 4] = [world::LOCAL4, "10.1.0.8:8080", world::LOCAL6, "[fd00:1::8]:8080"];
/// Addresses that belong to no backend and no frontend.
const STRANGERS: [&str; 2] = ["10.1.0.8:9999", "[fd00:1::8]:9999"];

/// Adds the addresses of backends and of the node, and a route to all other addresses, on the loopback interface of
/// this thread's namespace.
fn addresses() -> Result<()> {
    let mut all: Vec<Ip> =
        BACKENDS.iter().chain(&[world::NODE4, world::NODE6]).map(|it| at(it).ip).collect();
    all.dedup();
    for ip in all {
        let address = plain(Endpoint::new(ip, Port::NONE)).ip();
        // With nodad, an IPv6 address is usable without a second of duplicate address detection.
        let (bits, more): (u8, &[&str]) =
            if address.is_ipv4() { (32, &[]) } else { (128, &["nodad"]) };
        let address = format!("{address}/{bits}");
        ip_command(&[&["address", "add", &address, "dev", "lo"], more].concat())?;
    }
    ip_command(&["route", "add", "default", "dev", "lo"])?;
    ip_command(&["-6", "route", "add", "default", "dev", "lo"])
}

fn ip_command(arguments: &[&str]) -> Result<()> {
    let status = Command::new("ip").args(arguments).status().context("ip")?;
    ensure!(status.success(), "ip {arguments:?}: {status}");
    Ok(())
}

/// An endpoint as a type of the standard library.
fn plain(end: Endpoint) -> SocketAddr {
    let port = end.port.get();
    if end.ip.is_v4() {
        SocketAddr::from((end.ip.v4_octets(), port))
    } else {
        SocketAddr::from((end.ip.octets(), port))
    }
}

/// Two services with two backends in both families, modified by `flavour`.
fn tables(cookie: u64, backends: &[&str], flavour: impl Fn(Service) -> Service) -> Fake {
    let mut tables = Fake::node();
    tables.settings.node.netns_cookie = cookie;
    let families = [
        (0, world::CLUSTER4, world::NODE4, "10.96.0.11:80"),
        (4, world::CLUSTER6, world::NODE6, "[fd00:96::11]:80"),
    ];
    for (first, cluster, node, other) in families {
        let of = |end: &&&str| at(end).ip.is_v4() == at(cluster).ip.is_v4();
        let ends: Vec<(&str, bool)> = backends.iter().filter(of).map(|end| (*end, true)).collect();
        let service = flavour(tables.add_service(first + 1, &ends));
        tables.cluster_ip(cluster, Protocol::TCP, service);
        tables.node_port(node, Protocol::TCP, service);
        let second = flavour(tables.add_service(first + 2, &ends));
        tables.cluster_ip(other, Protocol::TCP, second);
    }
    tables
}

/// The destinations of calls: frontends, ports that they do not have, addresses without a Service, the unspecified
/// address.
const ASKED: [&str; 13] = [
    world::CLUSTER4,
    world::NODE4,
    "10.96.0.11:80",
    "10.96.0.10:81",
    "192.168.0.10:30081",
    STRANGERS[0],
    world::CLUSTER6,
    world::NODE6,
    "[fd00:96::11]:80",
    "[fd00:96::10]:81",
    STRANGERS[1],
    "0.0.0.0:30080",
    "[::]:30080",
];

/// The addresses to which a socket is bound before it connects, besides none.
const BOUND: [&str; 4] = [world::NODE4, BACKENDS[1], world::NODE6, BACKENDS[3]];

/// The binding of a socket before it connects.
#[derive(Clone, Copy, Debug)]
enum Bound<'a> {
    Nowhere,
    /// Bound to an address; the kernel chooses a port at connect(2).
    Address(&'a str),
    /// Bound to an address and a port.
    Port(&'a str),
}

struct Site<'a> {
    kernel: &'a Kernel,
    host: Fake,
    netns: u64,
}

impl Site<'_> {
    fn here(&self, decide: impl FnOnce(&Fake, &mut Choice) -> Outcome) -> Outcome {
        self.host.clock.set(bpf::now());
        decide(&self.host, &mut Choice::default())
    }

    /// Compares the state: a call creates no flow, and leaves the same affinity entry as a packet would.
    fn same(&self, what: &str) -> Result<()> {
        let entries = self.kernel.flows()?.len() + self.kernel.transient()?.len();
        ensure!(entries + self.host.all_flows().len() == 0, "{what}: a call made a flow");
        let ageless = |all: BTreeMap<Client, Affinity>| -> BTreeMap<Client, Affinity> {
            all.into_iter().map(|(key, value)| (key, Affinity { seen: 0, ..value })).collect()
        };
        let (here, there) =
            (ageless(self.host.affinity.borrow().clone()), ageless(self.kernel.affinity()?));
        ensure!(here == there, "{what}: AFFINITY host {here:#?} kernel {there:#?}");
        Ok(())
    }

    /// Connects a TCP socket, and compares its peer (getpeername).
    fn connects(&self, to: &str, bound: Bound<'_>, is_mapped: bool) -> Result<()> {
        let wanted = plain(at(to));
        let mapped = match wanted {
            SocketAddr::V4(v4) if is_mapped => {
                SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port()))
            }
            SocketAddr::V4(_) | SocketAddr::V6(_) => wanted,
        };
        let what = format!("connect to {mapped}, bound to {bound:?}");
        let socket = Socket::new(Domain::for_address(mapped), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        let mut local = Endpoint::new(Ip::UNSPECIFIED, Port::NONE);
        if let Bound::Address(own) | Bound::Port(own) = bound {
            setsockopt(&socket, IpBindAddressNoPort, &matches!(bound, Bound::Address(_)))?;
            let own = SocketAddr::new(plain(at(own)).ip(), 0);
            socket.bind(&own.into()).with_context(|| what.clone())?;
            let has = socket.local_addr()?.as_socket().context("an address")?;
            local = at(&has.to_string());
        }
        let cookie = SockRef::from(&socket).cookie()?;
        let call = Call {
            remote: at(to),
            local,
            protocol: Protocol::TCP,
            socket: cookie,
            netns: self.netns,
        };
        let there = socket.connect(&mapped.into());
        let here = self.here(|tables, choice| {
            socket::named(tables, &call)
                .map_or(Outcome::Leave, |named| socket::connect(tables, choice, &call, named))
        });
        let is_refused = refused(&there);
        match here {
            Outcome::Refuse => ensure!(is_refused, "{what}: {there:?}, not refused"),
            Outcome::Use(_) => ensure!(!is_refused, "{what}: refused, not {here:?}"),
            // The outcome depends on whether a server listens there.
            Outcome::Leave => {}
        }
        if let (Outcome::Use(backend), Ok(peer)) = (here, socket.peer_addr()) {
            let peer = peer.as_socket().context("a peer")?;
            let kept = Peer { frontend: at(to), backend };
            let shown = self.here(|tables, _| socket::peer_name(tables, Some(&kept), &backend));
            ensure!(shown == Outcome::Use(at(to)) && peer == mapped, "{what}: {peer} {shown:?}");
        }
        self.same(&what)
    }

    fn calls(&self) -> Result<()> {
        for to in ASKED {
            for is_mapped in [false, true] {
                self.connects(to, Bound::Nowhere, is_mapped)?;
            }
            let same_family = |own: &&&str| at(own).ip.is_v4() == at(to).ip.is_v4();
            for bound in BOUND.iter().filter(same_family) {
                self.connects(to, Bound::Address(bound), false)?;
                self.connects(to, Bound::Port(bound), false)?;
            }
        }
        Ok(())
    }
}

fn refused<T>(outcome: &io::Result<T>) -> bool {
    outcome.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// The first `connect` finds no listener. The second one goes to another frontend of the same backend, or to the
/// backend itself.
fn socket_that_connects_again_shows_its_last_peer() -> Result<()> {
    let frontends = [(world::CLUSTER4, "10.96.0.11:80"), (world::CLUSTER6, "[fd00:96::11]:80")];
    for ((first, second), backend) in frontends.into_iter().zip(STRANGERS) {
        for then in [second, backend] {
            let [asked, to, served] = [first, then, backend].map(|end| plain(at(end)));
            let socket = Socket::new(Domain::for_address(asked), Type::STREAM, None)?;
            let outcome = socket.connect(&asked.into());
            ensure!(refused(&outcome), "{first}: {outcome:?}");
            let _listener = TcpListener::bind(served)?;
            socket.connect(&to.into()).context(then)?;
            let peer = socket.peer_addr()?.as_socket();
            ensure!(peer == Some(to), "{first}, then {then}: {peer:?}");
        }
    }
    Ok(())
}

#[test]
fn socket_calls_are_the_same_in_the_kernel() -> Result<()> {
    // From here on this thread is in a network namespace of its own.
    let mut kernel = Kernel::new(4096)?;
    addresses()?;
    let _listeners: Vec<TcpListener> =
        BACKENDS.iter().map(|end| TcpListener::bind(plain(at(end)))).collect::<Result<_, _>>()?;
    let cgroup = Cgroup::enter()?;
    attach(kernel.ebpf(), cgroup.directory())?;
    let netns = netns_cookie()?;
    let both = |service: Service| service;
    kernel.load(&tables(netns, &STRANGERS, both))?;
    socket_that_connects_again_shows_its_last_peer()?;
    let flags = |flag: Flags| {
        move |service: Service| Service { flags: service.flags.with(flag), ..service }
    };
    let sticky = |service: Service| Service { affinity: 60, ..service };
    let worlds = [
        ("served", tables(netns, &BACKENDS, both)),
        ("without backends", tables(netns, &[], both)),
        ("with sources", tables(netns, &BACKENDS, flags(Flags::SOURCE_RANGES))),
        ("of local policy", tables(netns, &[], flags(Flags::LOCAL_POLICY.with(Flags::ANYWHERE)))),
        ("sticky", tables(netns, &BACKENDS, sticky)),
        ("of a pod", tables(netns + 1, &BACKENDS, both)),
        ("of a sticky pod", tables(netns + 1, &BACKENDS, sticky)),
    ];
    for (name, tables) in worlds {
        kernel.load(&tables)?;
        let mut site = Site { kernel: &kernel, host: tables, netns };
        site.calls().with_context(|| format!("services {name}"))?;
        // All endpoints are replaced by others in the same rows.
        for (id, row) in (0..).zip(&mut site.host.backends).skip(1) {
            row.epoch += 1_000;
            kernel.apply(&Op::PutBackend { id, row: *row })?;
        }
        site.calls().with_context(|| format!("services {name}, after a change"))?;
        println!("services {name}: {:?}", site.host.events.borrow());
    }
    Ok(())
}
