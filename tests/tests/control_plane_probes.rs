//! Requests in 47 forms to a health check port and to `/healthz`: the agent's answers equal those of the real
//! kube-proxy byte by byte, except for dates and the order of header lines.
//!
//! Answers to faulty requests are compared by their status.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Result, ensure};
use lb_tests::control_plane::kube_proxy::Mode;
use lb_tests::http;
use lb_tests::join_all::join_all;
use lb_tests::matrix::{Detector, Proxy, Setup, SharedApiServer, World, services};
use lb_tests::process::Home;
use lb_tests::topology::Family;
use lb_tests::wait::wait_until_ok;
use serde_json::json;

/// The health check port of a Service with a local endpoint on node-a.
const CHECK: u16 = 30_999;
const SOON: Duration = Duration::from_mins(1);
/// The placeholder for a time in answers.
const TIME: &str = "TIME";
/// The time without data after which a server counts as keeping the connection open.
const SILENCE: Duration = Duration::from_secs(4);

/// Requests by name, with the bytes that are sent. `PATH` stands for a served path. The answers must be equal.
const ALIKE: &[(&str, &str)] = &[
    ("plain", "GET PATH HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("close", "GET PATH HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
    ("close in capitals", "GET PATH HTTP/1.1\r\nHost: a\r\nCONNECTION: CLOSE\r\n\r\n"),
    ("keep-alive", "GET PATH HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\n"),
    ("HTTP/1.0", "GET PATH HTTP/1.0\r\n\r\n"),
    ("HTTP/1.0 with Host", "GET PATH HTTP/1.0\r\nHost: a\r\n\r\n"),
    ("HTTP/1.0, keep-alive", "GET PATH HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
    ("bare line feeds", "GET PATH HTTP/1.1\nHost: a\n\n"),
    ("HEAD", "HEAD PATH HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("POST", "POST PATH HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"),
    ("POST without a body", "POST PATH HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("PUT", "PUT PATH HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"),
    ("OPTIONS", "OPTIONS PATH HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("OPTIONS *", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("TRACE", "TRACE PATH HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("method in small letters", "get PATH HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("unknown method", "PROBE PATH HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("absolute form", "GET http://a:80PATH HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("query", "GET PATH?verbose=1 HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("two slashes", "GET /PATH HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("slash at the end", "GET PATH/ HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("dots", "GET /a/..PATH HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("unknown path", "GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n"),
    (
        "two requests at once",
        "GET PATH HTTP/1.1\r\nHost: a\r\n\r\nGET PATH HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
    ("empty Host", "GET PATH HTTP/1.1\r\nHost:\r\n\r\n"),
    ("header of two kilobytes", "GET PATH HTTP/1.1\r\nHost: a\r\nCookie: LONG\r\n\r\n"),
];

/// Requests whose answers need only the same status: most are invalid, and Go describes the error in another text with
/// another header line.
const ALIKE_BY_STATUS: &[(&str, &str)] = &[
    ("HTTP/0.9", "GET PATH\r\n\r\n"),
    ("no version", "GET PATH HTTP\r\nHost: a\r\n\r\n"),
    ("no protocol", "GET PATH FOO/1.1\r\nHost: a\r\n\r\n"),
    ("bad percent", "GET PATH%zz HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("no slash", "GET healthz HTTP/1.1\r\nHost: a\r\n\r\n"),
    (
        "chunks",
        "POST PATH HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    ),
    (
        "Expect",
        "POST PATH HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n",
    ),
    ("no Host", "GET PATH HTTP/1.1\r\n\r\n"),
    ("two Hosts", "GET PATH HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
    ("bad Host", "GET PATH HTTP/1.1\r\nHost: a b\r\n\r\n"),
    ("space before the colon", "GET PATH HTTP/1.1\r\nHost : a\r\n\r\n"),
    ("no colon", "GET PATH HTTP/1.1\r\nHost: a\r\nnonsense\r\n\r\n"),
    ("bad length", "POST PATH HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n"),
    ("a TLS hello", "\u{16}\u{3}\u{1}\u{1}\u{0}\r\n\r\n"),
];

/// Requests whose answers differ in their status, too (docs/limits.md). No probe sends them.
const UNLIKE: &[(&str, &str)] = &[
    ("HTTP/1.2", "GET PATH HTTP/1.2\r\nHost: a\r\n\r\n"),
    ("HTTP/2.0", "GET PATH HTTP/2.0\r\nHost: a\r\n\r\n"),
    ("HTTP/3.0", "GET PATH HTTP/3.0\r\nHost: a\r\n\r\n"),
    ("a preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ("empty line first", "\r\nGET PATH HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("percent", "GET /%68ealthz HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("folded header", "GET PATH HTTP/1.1\r\nHost: a\r\nX-A: b\r\n c\r\n\r\n"),
];

/// The received bytes in a comparable form.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    text: String,
    /// Whether the server closed the connection.
    is_closed: bool,
}

impl Answer {
    /// The status code; empty if the connection ended without an answer.
    fn status(&self) -> &str {
        self.text.split(' ').nth(1).unwrap_or_default()
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {}",
            self.text.escape_debug(),
            if self.is_closed { "closed" } else { "open" }
        )
    }
}

#[test]
fn probes_of_every_form_are_answered_as_by_kube_proxy() -> Result<()> {
    let server = SharedApiServer::start()?;
    server.publish(&services()?)?;
    let slice = |name: &str, family: &str, address: &str| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
            "metadata": {
                "name": name, "namespace": "default",
                "labels": {"kubernetes.io/service-name": "probed"},
            },
            "ports": [{"port": 8080}],
            "endpoints": [{"addresses": [address], "nodeName": "node-a", "conditions": {"ready": true}}],
        })
    };
    server.publish(&[
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "probed", "namespace": "default"},
            "spec": {
                "type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{"port": 80}],
                "healthCheckNodePort": CHECK,
            },
        }),
        slice("probed-v4", "IPv4", "10.244.1.12"),
    ])?;
    let theirs = answers(&server, Proxy::KubeProxy(Mode::Nftables))?;
    let ours = answers(&server, Proxy::Ours)?;
    let (mut wrong, mut unlike) = (Vec::new(), BTreeSet::new());
    for (theirs, ours) in theirs.iter().zip(&ours) {
        let is_alike = match theirs.by {
            Likeness::Whole => theirs.answer == ours.answer,
            Likeness::Status | Likeness::None => theirs.answer.status() == ours.answer.status(),
        };
        if theirs.by == Likeness::None {
            unlike.extend((!is_alike).then_some(theirs.form));
        } else if !is_alike {
            let Asked { server, form, answer, .. } = theirs;
            wrong.push(format!(
                "{server}, {form}\n  kube-proxy: {answer}\n  agent:      {}",
                ours.answer
            ));
        }
    }
    ensure!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), ours.len(), wrong.join("\n"));
    let listed: BTreeSet<&str> = UNLIKE.iter().map(|(name, _)| *name).collect();
    ensure!(unlike == listed, "the limits name {listed:?}, and these differ: {unlike:?}");
    println!("{} answers compared", ours.len());
    Ok(())
}

/// The parts of two answers that must be equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Likeness {
    Whole,
    Status,
    None,
}

/// A request by name, and its answer.
#[derive(Debug)]
struct Asked {
    server: &'static str,
    form: &'static str,
    by: Likeness,
    answer: Answer,
}

/// The answers of one proxy to each request, on both of its servers.
fn answers(server: &SharedApiServer, proxy: Proxy) -> Result<Vec<Asked>> {
    let world = World::start(Setup::new(proxy, Detector::ClusterCidr), server)?;
    let (rig, node) = (world.rig(), world.rig().node(0)?);
    let check = (rig.client().home(), node.addresses().socket(Family::V4, CHECK));
    let health = (node.home(), SocketAddr::from((Ipv4Addr::LOCALHOST, 10_256)));
    for (home, address) in [check, health] {
        wait_until_ok(SOON, "the server answers well", || {
            let (status, body) = http::get(home, address, "/healthz")?;
            ensure!(status == 200, "{status}: {body}");
            Ok(())
        })?;
    }
    let tables =
        [(Likeness::Whole, ALIKE), (Likeness::Status, ALIKE_BY_STATUS), (Likeness::None, UNLIKE)];
    let mut all = Vec::new();
    for (server, (home, address)) in [("health check port", check), ("/healthz", health)] {
        for (by, forms) in tables {
            all.extend(forms.iter().map(|(form, request)| {
                move || {
                    let answer = ask(home, address, &filled(request))?;
                    Ok(Asked { server, form, by, answer })
                }
            }));
        }
    }
    join_all(all)
}

fn filled(form: &str) -> String {
    form.replace("PATH", "/healthz").replace("LONG", &"x".repeat(2_048))
}

fn ask(home: &Home, server: SocketAddr, request: &str) -> Result<Answer> {
    home.run_in(|| {
        let mut stream = TcpStream::connect_timeout(&server, SOON)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.write_all(request.as_bytes())?;
        let (mut bytes, mut piece) = (Vec::new(), [0; 4_096]);
        let is_closed = loop {
            match stream.read(&mut piece) {
                Ok(0) => break true,
                Ok(length) => bytes.extend(piece.iter().take(length)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break false,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break true,
                Err(error) => return Err(error.into()),
            }
        };
        Ok(Answer { text: comparable(&String::from_utf8_lossy(&bytes)), is_closed })
    })?
}

/// Answers without times, and without the length of a body that contains times; the header lines of each are sorted.
fn comparable(text: &str) -> String {
    let plain = without_times(text);
    let parts = plain.split("\r\n\r\n").map(|part| {
        let mut lines: Vec<&str> = part.split("\r\n").collect();
        // The answer to HEAD has the Content-Length of a body that is not sent.
        let is_head_of_json =
            plain.contains("Content-Type: application/json") && plain.ends_with("\r\n\r\n");
        let has_times = plain.contains(TIME) || is_head_of_json;
        lines.retain(|line| {
            !(line.starts_with("Date: ") || has_times && line.starts_with("Content-Length: "))
        });
        // The status line stays first, and a body is one line.
        if let Some((_status, headers)) = lines.split_first_mut() {
            headers.sort_unstable();
        }
        lines.join("\r\n")
    });
    parts.collect::<Vec<_>>().join("\r\n\r\n")
}

/// Replaces each time in the format of RFC 3339 in a body by a placeholder.
fn without_times(text: &str) -> String {
    let words = text.split('"');
    let is_time = |word: &str| word.len() > 18 && word.starts_with("20") && word.contains('T');
    words.map(|word| if is_time(word) { TIME } else { word }).collect::<Vec<_>>().join("\"")
}
