//! Listeners as load balancers use them: their responses, and when a port opens, moves and closes.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as Name, UnixDatagram};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::*;

/// The number of connections of one Service at a time.
const OF_ONE: usize = 32;

fn checks() -> HealthChecks {
    HealthChecks::with(Health::new(Duration::from_mins(1)), Connections::bounded(1_024, OF_ONE))
}

fn name(name: &str) -> ServiceName {
    ServiceName { namespace: "shop".into(), name: name.into() }
}

fn everywhere() -> ListenAddresses {
    ListenAddresses { v4: Where::Everywhere, v6: Where::Everywhere }
}

fn loopback() -> ListenAddresses {
    let v4: IpAddr = Ipv4Addr::LOCALHOST.into();
    let v6: IpAddr = Ipv6Addr::LOCALHOST.into();
    ListenAddresses { v4: Where::On([v4].into()), v6: Where::On([v6].into()) }
}

/// The number of ports that all tests of a process use together.
const BLOCK: u16 = 500;

/// Returns a port that no other process gets meanwhile: below the ephemeral ones, from a block that belongs to this
/// process.
async fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    static OURS: LazyLock<(UnixDatagram, u16)> = LazyLock::new(block);
    loop {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(next < BLOCK, "no port is left of {BLOCK}");
        let port = OURS.1 + next;
        if TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await.is_ok() {
            return port;
        }
    }
}

/// Returns the first port of a block, and a socket with a name that reserves the block as long as this process lives.
fn block() -> (UnixDatagram, u16) {
    let mut blocks = (20_000..29_000).step_by(BLOCK.into());
    let taken = blocks.find_map(|first| {
        let name = Name::from_abstract_name(format!("lb-agent-ports-{first}")).unwrap();
        Some((UnixDatagram::bind_addr(&name).ok()?, first))
    });
    taken.expect("a block of ports that no other process has")
}

#[expect(clippy::unnecessary_wraps, reason = "the shape that `set` takes")]
fn wants(port: u16, local_ready: u32) -> Option<HealthCheck> {
    Some(HealthCheck { port, local_ready: LocalReady { v4: local_ready, v6: local_ready } })
}

async fn ask(address: SocketAddr, request: &str) -> String {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    };
    timeout(Duration::from_mins(1), exchange).await.unwrap()
}

const GET: &str = "GET /anything?x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

fn v4(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
}

fn v6(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port)
}

async fn is_open(address: SocketAddr) -> bool {
    TcpStream::connect(address).await.is_ok()
}

#[tokio::test]
async fn the_answer_is_kube_proxys() {
    let (mut checks, port) = (checks(), free_port().await);
    checks.set_addresses(everywhere());
    checks.set(&name("web"), wants(port, 2));
    let text = ask(v4(port), GET).await;
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    for header in [
        "\r\nContent-Type: application/json\r\n",
        "\r\nX-Content-Type-Options: nosniff\r\n",
        "\r\nX-Load-Balancing-Endpoint-Weight: 2\r\n",
    ] {
        assert!(text.contains(header), "{text}");
    }
    // The format is that of pkg/proxy/healthcheck/service_health.go.
    let body = "\r\n\r\n{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\n\
                \t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}";
    assert!(text.ends_with(body), "{text}");
    let post = ask(v6(port), "POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc").await;
    assert!(post.ends_with(body), "any method, both families: {post}");
    let head = ask(v6(port), "HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(head.ends_with("\r\n\r\n"), "{head}");
}

/// As with Go's server, a connection serves many requests, also with bare line feeds, and paths have no meaning.
#[tokio::test]
async fn a_probe_may_keep_its_connection_and_spell_as_it_likes() {
    let (mut checks, port) = (checks(), free_port().await);
    checks.set_addresses(everywhere());
    checks.set(&name("web"), wants(port, 1));
    let requests =
        "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET //healthz HTTP/1.1\nHost: a\nConnection: close\n\n";
    let answers = ask(v4(port), requests).await;
    assert_eq!(answers.matches("HTTP/1.1 200 OK\r\n").count(), 2, "{answers}");
}

/// A load balancer that keeps its connection must not be told of a Service that has no health check here any more.
#[tokio::test]
async fn connections_end_with_the_port_of_their_service() {
    let (mut checks, port, next) = (checks(), free_port().await, free_port().await);
    checks.set_addresses(everywhere());
    checks.set(&name("other"), wants(next, 1));
    for change in [None, wants(free_port().await, 1)] {
        checks.set(&name("web"), wants(port, 1));
        let mut kept = TcpStream::connect(v4(port)).await.unwrap();
        let mut other = TcpStream::connect(v4(next)).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        kept.write_all(request).await.unwrap();
        let mut first = [0; 12];
        kept.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        checks.set(&name("web"), change);
        let mut rest = Vec::new();
        let end = timeout(Duration::from_mins(1), kept.read_to_end(&mut rest)).await;
        assert!(end.is_ok(), "the connection is open");
        other.write_all(request).await.unwrap();
        other.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200", "of a Service that stays");
    }
}

/// RFC 9112 3.2, with the messages of Go's server.
#[tokio::test]
async fn a_request_without_host_is_refused() {
    let (mut checks, port) = (checks(), free_port().await);
    checks.set_addresses(everywhere());
    checks.set(&name("web"), wants(port, 1));
    let text = ask(v4(port), "GET / HTTP/1.1\r\n\r\n").await;
    assert!(text.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{text}");
    assert!(text.ends_with("400 Bad Request: missing required Host header"), "{text}");
}

#[tokio::test]
async fn without_endpoints_or_health_the_answer_is_503() {
    let (mut checks, port) = (checks(), free_port().await);
    checks.set_addresses(loopback());
    checks.set(&name("web"), wants(port, 0));
    let text = ask(v4(port), GET).await;
    assert!(text.starts_with("HTTP/1.1 503 ") && text.contains("Weight: 0\r\n"), "{text}");
    checks.set(&name("web"), wants(port, 1));
    assert!(ask(v6(port), GET).await.starts_with("HTTP/1.1 200 "));
    checks.health.pending(std::time::Instant::now().checked_sub(Duration::from_mins(1)));
    let text = ask(v4(port), GET).await;
    assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
    let end = "\"localEndpoints\": 1,\n\t\"serviceProxyHealthy\": false\n}";
    assert!(text.ends_with(end), "{text}");
}

#[tokio::test]
async fn each_family_is_answered_for_its_own_endpoints() {
    let (mut checks, port) = (checks(), free_port().await);
    let of = |v4, v6| Some(HealthCheck { port, local_ready: LocalReady { v4, v6 } });
    // First one socket for both families, then one for each.
    for addresses in [everywhere(), loopback()] {
        checks.set_addresses(addresses);
        checks.set(&name("web"), of(0, 2));
        assert!(ask(v4(port), GET).await.starts_with("HTTP/1.1 503 "), "no IPv4 endpoint");
        assert!(ask(v6(port), GET).await.contains("Endpoint-Weight: 2\r\n"));
        checks.set(&name("web"), of(1, 0));
        assert!(ask(v4(port), GET).await.starts_with("HTTP/1.1 200 "));
        assert!(ask(v6(port), GET).await.starts_with("HTTP/1.1 503 "));
    }
}

#[tokio::test]
async fn a_port_moves_at_once_and_ends_with_its_service() {
    let mut checks = checks();
    let (first, second) = (free_port().await, free_port().await);
    checks.set_addresses(everywhere());
    checks.set(&name("a"), wants(first, 1));
    checks.set(&name("a"), wants(second, 1));
    assert!(!is_open(v4(first)).await);
    assert!(ask(v4(second), GET).await.contains(r#""name": "a""#));
    checks.set(&name("b"), wants(first, 1));
    assert!(ask(v4(first), GET).await.contains(r#""name": "b""#), "its old port has a new Service");
    assert_eq!(checks.failures(), []);
    checks.set(&name("a"), None);
    assert!(!is_open(v4(second)).await);
    drop(checks);
    assert!(!is_open(v4(first)).await);
}

#[tokio::test]
async fn listeners_follow_the_addresses_of_the_node() {
    let (mut checks, port) = (checks(), free_port().await);
    checks.set(&name("web"), wants(port, 1));
    assert!(!is_open(v4(port)).await, "no address is known yet");
    let only4 = ListenAddresses { v6: Where::default(), ..loopback() };
    checks.set_addresses(only4);
    assert!(is_open(v4(port)).await && !is_open(v6(port)).await);
    checks.set_addresses(everywhere());
    assert!(is_open(v4(port)).await && is_open(v6(port)).await);
    let mixed = ListenAddresses { v6: Where::Everywhere, ..loopback() };
    checks.set_addresses(mixed);
    assert!(is_open(v4(port)).await && is_open(v6(port)).await);
    assert_eq!(checks.failures(), []);
}

#[tokio::test]
async fn a_port_that_is_taken_is_named_once_and_tried_again() {
    let (mut checks, port) = (checks(), free_port().await);
    let other = TcpListener::bind(v4(port)).await.unwrap();
    checks.set_addresses(loopback());
    checks.set(&name("web"), wants(port, 1));
    checks.retry();
    let failures = checks.failures();
    assert_eq!(failures.len(), 1, "once, though tried twice");
    assert_eq!(failures[0].address, v4(port));
    let problem = checks.problem().unwrap();
    assert!(problem.contains(&format!("web is not answered on {}: ", v4(port))), "{problem}");
    assert!(is_open(v6(port)).await, "its other address is answered");
    drop(other);
    checks.retry();
    assert_eq!((checks.failures().len(), checks.problem()), (0, None));
    assert!(ask(v4(port), GET).await.starts_with("HTTP/1.1 200 "));
}

/// Contract 6.1, for each family.
#[tokio::test]
async fn a_node_answers_at_all_of_its_addresses_or_at_none() {
    let (mut checks, port) = (checks(), free_port().await);
    let second = SocketAddr::new(Ipv4Addr::new(127, 0, 0, 2).into(), port);
    let other = TcpListener::bind(second).await.unwrap();
    let v4_addresses = Where::On([v4(port).ip(), second.ip()].into());
    checks.set_addresses(ListenAddresses { v4: v4_addresses, ..loopback() });
    checks.set(&name("web"), wants(port, 1));
    for _ in 0..2 {
        assert!(!is_open(v4(port)).await && is_open(v6(port)).await);
        checks.retry();
    }
    assert!(checks.failures().len() == 1 && checks.problem().is_some());
    drop(other);
    checks.retry();
    assert!(is_open(v4(port)).await && is_open(second).await);
    assert_eq!(checks.problem(), None);
    // An address that comes later costs the others nothing.
    let third = SocketAddr::new(Ipv4Addr::new(127, 0, 0, 3).into(), port);
    let _other = TcpListener::bind(third).await.unwrap();
    let v4_addresses = Where::On([v4(port).ip(), second.ip(), third.ip()].into());
    checks.set_addresses(ListenAddresses { v4: v4_addresses, ..loopback() });
    assert!(is_open(v4(port)).await && is_open(second).await);
    assert!(checks.problem().unwrap().contains(&third.to_string()));
}

#[tokio::test]
async fn slow_and_senseless_clients_cost_only_themselves() {
    let mut checks = checks();
    let (slow, other) = (free_port().await, free_port().await);
    checks.set_addresses(loopback());
    checks.set(&name("slow"), wants(slow, 1));
    checks.set(&name("other"), wants(other, 1));
    let mut held = Vec::new();
    for _ in 0..2 * OF_ONE {
        let mut stream = TcpStream::connect(v4(slow)).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        held.push(stream);
    }
    for (asked, which) in [(slow, "its own probes"), (other, "probes of a second service")] {
        let answer = timeout(Duration::from_secs(3), ask(v4(asked), GET)).await;
        assert!(answer.is_ok_and(|text| text.starts_with("HTTP/1.1 200 ")), "{which}");
    }
    assert!(ask(v4(other), "\u{16}\u{3}\u{1}\r\n\r\n").await.starts_with("HTTP/1.1 400 "));
    assert!(ask(v4(other), &"x".repeat(9_000)).await.starts_with("HTTP/1.1 4"));
    for stream in &mut held {
        let waited = timeout(Duration::from_mins(1), stream.read_u8()).await;
        assert!(waited.is_ok_and(|read| read.is_err()), "a silent client was not dropped");
    }
}

#[tokio::test]
async fn many_services_are_listened_for() {
    let mut checks = checks();
    checks.set_addresses(ListenAddresses { v6: Where::default(), ..loopback() });
    let mut ports = Vec::new();
    for number in 0..400 {
        let port = free_port().await;
        checks.set(&name(&format!("s{number}")), wants(port, number + 1));
        ports.push(port);
    }
    assert_eq!(checks.problem(), None);
    for (number, port) in ports.iter().enumerate().step_by(37) {
        let weight = format!("Endpoint-Weight: {}\r\n", number + 1);
        assert!(ask(v4(*port), GET).await.contains(&weight));
    }
}

/// A Service that takes over the port of another one, in one batch of changes.
#[tokio::test]
async fn port_that_is_given_up_is_free_for_the_next_service() {
    let (mut checks, port) = (checks(), free_port().await);
    checks.set_addresses(loopback());
    let (old, new) = (name("old"), name("a-new"));
    checks.set(&old, wants(port, 1));
    for (service, wanted) in [(&new, wants(port, 2)), (&old, None)] {
        checks.give_up(service, wanted);
    }
    checks.set(&new, wants(port, 2));
    checks.set(&old, None);
    assert_eq!((checks.failures(), checks.problem()), (Vec::new(), None));
    let answer =
        ask(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port), "GET / HTTP/1.0\r\n\r\n").await;
    assert!(answer.contains("a-new"), "{answer}");
}
