//! A proxy between agents and a real API server that replaces the server's answers on request of a test.
//!
//! Agents speak plain HTTP to it, and it speaks TLS to the server. It runs as a thread in the server's namespace.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use futures::{StreamExt as _, stream};
use kube::Client;
use lb_agent::watch::client::Server;
use nix::sched::{CloneFlags, setns};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::control_plane::ControlPlane;
use crate::netns::NAMES;

/// The answers that replace the server's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Says {
    #[default]
    TheSame,
    /// This status code with `Retry-After: 1`.
    Busy(u16),
    /// An HTML page of many lines with status 200.
    Page,
    /// An empty body with status 200: each watch ends as soon as it begins.
    Nothing,
    /// The server's own answer, in which the spec of objects with this name is invalid.
    Spoilt(&'static str),
}

/// An interceptor; its thread ends with the process.
#[derive(Debug)]
pub struct Interceptor {
    kubeconfig: PathBuf,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    says: Mutex<Says>,
    requests: AtomicU64,
    /// A change of this value ends the bodies that are being sent.
    turn: watch::Sender<u64>,
}

impl Interceptor {
    /// Intercepts this control plane, which lives in the namespace `netns`, at another port of its address.
    pub fn start(control_plane: &ControlPlane, netns: &str, port: u16) -> Result<Self> {
        let address = SocketAddr::new(control_plane.address().ip(), port);
        let real = control_plane.kubeconfig();
        let text = fs::read_to_string(&real).with_context(|| real.display().to_string())?;
        let kubeconfig = real.with_file_name(format!("kubeconfig-intercepted-{port}.yaml"));
        let (from, to) =
            (format!("https://{}", control_plane.address()), format!("http://{address}"));
        fs::write(&kubeconfig, text.replace(&from, &to))?;
        let (turn, _) = watch::channel(0);
        let shared = Shared { says: Mutex::default(), requests: AtomicU64::new(0), turn };
        let shared = Arc::new(shared);
        let (state, netns) = (Arc::clone(&shared), Path::new(NAMES).join(netns));
        let (ready, is_ready) = sync_channel(1);
        drop(thread::Builder::new().name("interceptor".to_owned()).spawn(move || {
            let served = serve(address, &netns, &real, state, || drop(ready.send(Ok(()))));
            if let Err(error) = served {
                drop(ready.send(Err(error)));
            }
        })?);
        is_ready.recv().context("the interceptor ended")??;
        Ok(Self { kubeconfig, shared })
    }

    /// Returns the kubeconfig with which agents connect to the interceptor.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Replaces the answers from now on, and ends those under way.
    pub fn says(&self, says: Says) {
        *self.shared.says() = says;
        self.shared.turn.send_modify(|turn| *turn += 1);
    }

    /// Returns the number of requests so far.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn says(&self) -> MutexGuard<'_, Says> {
        self.says.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn serve(
    address: SocketAddr,
    netns: &Path,
    kubeconfig: &Path,
    shared: Arc<Shared>,
    ready: impl FnOnce(),
) -> Result<()> {
    let there = File::open(netns).with_context(|| netns.display().to_string())?;
    setns(&there, CloneFlags::CLONE_NEWNET)?;
    // One thread only: a socket belongs to the namespace of the thread that creates it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let server = Server { kubeconfig: Some(kubeconfig.to_owned()), master: None };
        let client = server.client(None, None).await?;
        let listener = TcpListener::bind(address).await.context("listen")?;
        let router = Router::new().fallback(answer).with_state((client, shared));
        ready();
        axum::serve(listener, router).await.context("serve")
    })
}

async fn answer(
    State((client, shared)): State<(Client, Arc<Shared>)>,
    request: Request,
) -> Response {
    shared.requests.fetch_add(1, Ordering::Relaxed);
    let (says, mut turn) = (shared.says().clone(), shared.turn.subscribe());
    let spoilt = match says {
        Says::TheSame => None,
        Says::Spoilt(name) => Some(name),
        Says::Busy(code) => return response(code, "Retry-After", "1", "later".to_owned()),
        Says::Page => return response(200, "Content-Type", "text/html", "<html>\n".repeat(200)),
        Says::Nothing => {
            return response(200, "Content-Type", "application/json", String::new());
        }
    };
    let (head, body) = request.into_parts();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let asked = axum::body::to_bytes(body, 1 << 20).await.unwrap_or_default();
    let mut onwards = Request::builder().method(head.method).uri(path);
    for (name, value) in head.headers.iter().filter(|(name, _)| is_passed_on(name.as_str())) {
        onwards = onwards.header(name, value);
    }
    let answer = match onwards.body(kube::client::Body::from(asked.to_vec())) {
        Ok(onwards) => client.send(onwards).await,
        Err(_) => return response(400, "Connection", "close", String::new()),
    };
    let Ok(answer) = answer else {
        return response(502, "Connection", "close", String::new());
    };
    let (mut head, body) = answer.into_parts();
    drop(head.headers.remove("content-length"));
    drop(head.headers.remove("transfer-encoding"));
    let data = lines(Body::new(body)).map(move |line| line.map(|line| spoil(line, spoilt)));
    let over = async move { drop(turn.changed().await) };
    Response::from_parts(head, Body::from_stream(data.take_until(Box::pin(over))))
}

fn is_passed_on(header: &str) -> bool {
    matches!(header, "accept" | "content-type" | "user-agent")
}

fn response(code: u16, name: &str, value: &str, body: String) -> Response {
    let built = Response::builder().status(code).header(name, value).body(Body::from(body));
    built.unwrap_or_default()
}

/// Splits a body into lines, so that no object is cut in two.
fn lines(body: Body) -> impl futures::Stream<Item = io::Result<Vec<u8>>> {
    let begin = (body.into_data_stream(), Vec::new());
    stream::unfold(begin, |(mut data, mut held): (_, Vec<u8>)| async move {
        loop {
            if let Some(at) = held.iter().rposition(|byte| *byte == b'\n') {
                let rest = held.split_off(at + 1);
                return Some((Ok(held), (data, rest)));
            }
            match data.next().await {
                Some(Ok(bytes)) => held.extend_from_slice(&bytes),
                Some(Err(error)) => {
                    return Some((Err(io::Error::other(error)), (data, Vec::new())));
                }
                None if held.is_empty() => return None,
                None => return Some((Ok(std::mem::take(&mut held)), (data, held))),
            }
        }
    })
}

fn spoil(lines: Vec<u8>, name: Option<&str>) -> Vec<u8> {
    let Some(name) = name else { return lines };
    let name = format!("\"name\":\"{name}\"");
    let spoil = |line: &str| {
        if line.contains(&name) {
            line.replacen("\"spec\":{", "\"spec\":7,\"was\":{", 1)
        } else {
            line.to_owned()
        }
    };
    String::from_utf8_lossy(&lines).split_inclusive('\n').map(spoil).collect::<String>().into()
}
