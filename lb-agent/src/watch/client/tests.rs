//! Faults of credential files are reported at once, changed files are used, and a refused client is rebuilt.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::routing::get;
use futures::StreamExt as _;
use kube::client::Body;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::*;
use crate::node::watch::Published;
use crate::node::{Address, ChangeSource, NetnsView};
use crate::watch::connector;

async fn refused(server: Server) -> String {
    match server.client(None, None).await {
        Ok(_) => panic!("a client"),
        Err(error) => error.to_string(),
    }
}

fn kubeconfig(directory: &tempfile::TempDir, text: &str) -> PathBuf {
    let file = directory.path().join("kubeconfig");
    fs::write(&file, text).expect("a file");
    file
}

fn of(server: &str, cluster: &str, user: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Config
clusters: [{{ name: c, cluster: {{ server: '{server}', {cluster} }} }}]
users: [{{ name: u, user: {{ {user} }} }}]
contexts: [{{ name: x, context: {{ cluster: c, user: u }} }}]
current-context: x
"
    )
}

/// A server that accepts one token, and the requests it got.
struct Taking {
    address: String,
    token: Arc<Mutex<String>>,
}

async fn taking(token: &str) -> Taking {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let token = Arc::new(Mutex::new(token.to_owned()));
    let taken = Arc::clone(&token);
    let answer = async move |headers: HeaderMap| {
        let wanted = format!("Bearer {}", taken.lock().expect("no panic"));
        let given = headers.get("Authorization").and_then(|it| it.to_str().ok());
        if given == Some(&*wanted) { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
    };
    let router = Router::new().route("/", get(answer));
    drop(tokio::spawn(async move { axum::serve(listener, router).await }));
    Taking { address, token }
}

async fn code(client: &Client) -> Option<u16> {
    let request = Request::get("/").body(Body::empty()).expect("a request");
    client.send(request).await.ok().map(|answer| answer.status().as_u16())
}

async fn until_let_in(client: &Client) {
    let until = async {
        while code(client).await != Some(200) {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_mins(1), until).await.expect("let in");
}

#[tokio::test]
async fn a_server_that_is_away_is_no_error_yet() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = kubeconfig(&directory, &of("http://127.0.0.1:1", "", ""));
    let server = Server { kubeconfig: Some(file), master: None };
    assert!(server.client(None, None).await.is_ok());
}

/// Both ends are in this process, so that a request takes far less time than a connection is reused for.
#[tokio::test]
async fn connection_that_was_unused_for_long_gets_no_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let connection = async |ConnectInfo(from): ConnectInfo<SocketAddr>| from.to_string();
    let service = Router::new()
        .route("/", get(connection))
        .into_make_service_with_connect_info::<SocketAddr>();
    drop(tokio::spawn(async move { axum::serve(listener, service).await }));
    let directory = tempfile::tempdir().expect("a directory");
    let file = kubeconfig(&directory, &of(&address, "", ""));
    let server = Server { kubeconfig: Some(file), master: None };
    let client = server.client(None, None).await.expect("a client");
    let connection = async || {
        let request = Request::get("/").body(Vec::new()).expect("a request");
        client.request_text(request).await.expect("a source address")
    };
    let used_again = async {
        let mut first = connection().await;
        // A connection returns to the pool a moment after its response.
        while let next = connection().await
            && next != first
        {
            first = next;
        }
        first
    };
    let first = timeout(Duration::from_mins(1), used_again).await.expect("used again at once");
    sleep(2 * connector::REUSED).await;
    assert_ne!(connection().await, first);
}

#[tokio::test]
async fn errors_name_the_file_and_the_remedy() {
    let directory = tempfile::tempdir().expect("a directory");
    let missing = Server { kubeconfig: Some("/nowhere/config".into()), master: None };
    let text = refused(missing).await;
    assert!(text.starts_with("kubeconfig /nowhere/config: "), "{text}");
    assert!(text.ends_with("give a readable file to --kubeconfig"), "{text}");
    let broken = Server { kubeconfig: Some(kubeconfig(&directory, "clusters: {")), master: None };
    let text = refused(broken).await;
    assert!(text.contains("failed to parse kubeconfig YAML"), "{text}");
    let file = kubeconfig(&directory, "users: [{ name: u, user: { token: [SECRET] } }]");
    let text = refused(Server { kubeconfig: Some(file), master: None }).await;
    assert!(text.contains("YAML (line 1, column ") && !text.contains("SECRET"), "{text}");
    let other =
        of("http://127.0.0.1:1", "", "").replace("current-context: x", "current-context: y");
    let other = Server { kubeconfig: Some(kubeconfig(&directory, &other)), master: None };
    let text = refused(other).await;
    assert!(text.contains("no context \"y\", only [\"x\"]"), "{text}");
    let proxy = of("http://127.0.0.1:1", "proxy-url: 'gopher://x'", "");
    let proxy = Server { kubeconfig: Some(kubeconfig(&directory, &proxy)), master: None };
    assert!(refused(proxy).await.contains("gopher://x"));
}

#[tokio::test]
async fn the_master_must_be_a_whole_address() {
    for text in ["10.0.0.1:6443", "ftp://10.0.0.1", "/api", "https://", "a b"] {
        let server = Server { kubeconfig: None, master: Some(text.to_owned()) };
        assert!(refused(server).await.starts_with("--master "), "{text}");
    }
}

/// The file ends with a newline, as `echo` writes it.
#[tokio::test]
async fn a_token_that_is_replaced_in_its_file_is_used() {
    let (directory, server) = (tempfile::tempdir().expect("a directory"), taking("first").await);
    let token = directory.path().join("token");
    fs::write(&token, "first\n").expect("a token");
    let user = format!("tokenFile: '{}'", token.display());
    let file = kubeconfig(&directory, &of(&server.address, "", &user));
    let client = Server { kubeconfig: Some(file), master: None }.client(None, None).await;
    let client = client.expect("a client");
    assert_eq!(code(&client).await, Some(200));
    "second".clone_into(&mut server.token.lock().expect("no panic"));
    assert_eq!(code(&client).await, Some(401));
    fs::write(&token, "second\n").expect("a token");
    until_let_in(&client).await;
}

/// As in client-go, and unlike in `kube`.
#[tokio::test]
async fn a_token_in_the_kubeconfig_counts_until_its_file_can_be_read() {
    let (directory, server) = (tempfile::tempdir().expect("a directory"), taking("inline").await);
    let token = directory.path().join("token");
    let user = format!("token: inline, tokenFile: '{}'", token.display());
    let file = kubeconfig(&directory, &of(&server.address, "", &user));
    let client = Server { kubeconfig: Some(file), master: None }.client(None, None).await;
    let client = client.expect("a client");
    assert_eq!(code(&client).await, Some(200));
    "first".clone_into(&mut server.token.lock().expect("no panic"));
    fs::write(&token, "first").expect("a token");
    until_let_in(&client).await;
    "second".clone_into(&mut server.token.lock().expect("no panic"));
    fs::write(&token, "second").expect("a token");
    until_let_in(&client).await;
}

/// The plugin fails at first, then prints a token that is accepted, and later is run again for the next one.
#[tokio::test]
async fn credential_plugin_runs_again_after_a_failure_and_a_401() {
    let (directory, server) = (tempfile::tempdir().expect("a directory"), taking("first").await);
    let (plugin, token) = (directory.path().join("plugin"), directory.path().join("token"));
    let answer = r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}"#;
    let script = format!(
        "#!/bin/sh\ntest -e {token} || exit 1\nprintf '{answer}' \"$(cat {token})\"\n",
        token = token.display()
    );
    fs::write(&plugin, script).expect("a plugin");
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).expect("permissions");
    let user = format!(
        "exec: {{ apiVersion: client.authentication.k8s.io/v1, command: '{}', interactiveMode: Never }}",
        plugin.display()
    );
    let file = kubeconfig(&directory, &of(&server.address, "", &user));
    let client = Server { kubeconfig: Some(file), master: None }.client(None, None).await;
    let client = client.expect("a client");
    assert_eq!(code(&client).await, None, "the plugin fails");
    fs::write(&token, "first").expect("a token");
    until_let_in(&client).await;
    "second".clone_into(&mut server.token.lock().expect("no panic"));
    fs::write(&token, "second").expect("a token");
    until_let_in(&client).await;
}

/// The plugin has secrets in its arguments, its environment and its output. Each request runs it again, since its token
/// has expired.
#[tokio::test]
async fn failure_of_a_credential_plugin_shows_no_secret() {
    let (directory, server) = (tempfile::tempdir().expect("a directory"), taking("first").await);
    let (plugin, token) = (directory.path().join("plugin"), directory.path().join("token"));
    let answer = r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"first","expirationTimestamp":"2020-01-01T00:00:00Z"}}"#;
    let script = format!(
        "#!/bin/sh\nif test -e {}; then echo '{answer}'; else echo SECRET; exit 3; fi\n",
        token.display()
    );
    fs::write(&plugin, script).expect("a plugin");
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).expect("permissions");
    let plugin = plugin.display();
    let user = format!(
        "exec: {{ apiVersion: client.authentication.k8s.io/v1, command: '{plugin}', args: [SECRET], \
         env: [{{ name: WORD, value: SECRET }}], interactiveMode: Never }}"
    );
    let file = kubeconfig(&directory, &of(&server.address, "", &user));
    let client = Server { kubeconfig: Some(file), master: None }.client(None, None).await;
    let client = client.expect("a client");
    let error = async || {
        let request = Request::get("/").body(Body::empty()).expect("a request");
        crate::chain(&client.send(request).await.expect_err("the plugin fails"))
    };
    let expected = format!("exec: executable {plugin} failed with exit code 3");
    let built = error().await;
    assert!(built.contains(&expected) && !built.contains("SECRET"), "{built}");
    fs::write(&token, "").expect("a token");
    until_let_in(&client).await;
    fs::remove_file(&token).expect("no token");
    let refreshed = error().await;
    assert!(refreshed.ends_with(&expected) && !refreshed.contains("SECRET"), "{refreshed}");
}

/// Another server is named in the kubeconfig: the next request goes there.
#[tokio::test]
async fn a_kubeconfig_that_is_replaced_is_used() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = kubeconfig(&directory, &of("http://127.0.0.1:1", "", "token: t"));
    let client = Server { kubeconfig: Some(file), master: None }.client(None, None).await;
    let client = client.expect("a client");
    assert_eq!(code(&client).await, None);
    let server = taking("t").await;
    drop(kubeconfig(&directory, &of(&server.address, "", "token: t")));
    until_let_in(&client).await;
}

/// A server that begins a response and never ends it, like that of a watch.
#[tokio::test]
async fn an_answer_ends_at_once_when_the_source_address_of_its_connection_is_gone() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let endless = || async {
        let first = futures::stream::iter([Ok::<_, std::io::Error>("{}\n")]);
        axum::body::Body::from_stream(first.chain(futures::stream::pending()))
    };
    let router = Router::new().route("/", get(endless));
    drop(tokio::spawn(async { axum::serve(listener, router).await }));
    let directory = tempfile::tempdir().expect("a directory");
    let file = kubeconfig(&directory, &of(&address, "", "token: t"));
    let (shows, updates) = watch::channel(None);
    let client = Server { kubeconfig: Some(file), master: None }.client(None, Some(updates)).await;
    let client = client.expect("a client");
    let ask = || async {
        let request = Request::get("/").body(Body::empty()).expect("a request");
        let answer = client.send(request).await.expect("an answer");
        let mut body = axum::body::Body::new(answer.into_body()).into_data_stream();
        drop(body.next().await.expect("a piece").expect("a piece"));
        body
    };
    let shown = |ips: &[IpAddr]| {
        let addresses = ips.iter().map(|ip| Address {
            peer: *ip,
            index: 1,
            ip: *ip,
            prefix: 8,
            is_global: false,
            is_preferred: true,
        });
        let view = NetnsView { addresses: addresses.collect(), ..NetnsView::default() };
        let (view, at) = (Arc::new(view), std::time::Instant::now());
        shows.send_replace(Some(Published { view, source: ChangeSource::Event, at }))
    };
    let (source, other) = ([127, 0, 0, 1].into(), [192, 0, 2, 1].into());
    drop(shown(&[other]));
    let mut body = ask().await;
    // Only an address that existed can vanish, and only its own connections end.
    for now in [&[source, other][..], &[source]] {
        drop(shown(now));
        let silence = timeout(Duration::from_millis(200), body.next()).await;
        assert!(silence.is_err(), "{silence:?}");
    }
    drop(shown(&[]));
    let end = timeout(Duration::from_secs(5), body.next()).await.expect("an end");
    assert!(end.is_some_and(|end| end.is_err()));
    // The next request uses another connection.
    let mut body = ask().await;
    let silence = timeout(Duration::from_millis(200), body.next()).await;
    assert!(silence.is_err(), "{silence:?}");
}
