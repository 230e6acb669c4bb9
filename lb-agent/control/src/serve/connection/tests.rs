//! Clients that send nothing, and clients that wait.

use std::net::Ipv4Addr;

use axum::body::Body;
use axum::http::Request;
use axum::routing::get;
use hyper::client::conn::http2;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::files::Files;
use crate::serve::acceptor;

const LIMIT: Duration = Duration::from_millis(300);
/// Longest time for whatever a test waits for.
const DEADLINE: Duration = Duration::from_secs(30);
/// The beginning of an HTTP/2 connection (RFC 9113, section 3.4): its preface, then empty SETTINGS.
const BEGINNING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Connects to a server whose answers take longer than the limit for requests.
async fn connect(protocols: &[&[u8]]) -> TlsStream<TcpStream> {
    let directory = tempfile::tempdir().unwrap();
    let address = Ipv4Addr::LOCALHOST.into();
    let serving = Files::create(directory.path()).unwrap().serving(&[address]).unwrap();
    let mut trusted = RootCertStore::empty();
    let authority = CertificateDer::pem_slice_iter(serving.chain.as_bytes()).last();
    trusted.add(authority.unwrap().unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(trusted).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|it| it.to_vec()).collect();
    let listener = TcpListener::bind((address, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = acceptor(&serving).unwrap();
    drop(tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let slow = async || {
            sleep(LIMIT * 3).await;
            "late"
        };
        serve(stream, &acceptor, Router::new().route("/", get(slow)), LIMIT).await;
    }));
    let stream = TcpStream::connect((address, port)).await.unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(ServerName::from(address), stream).await.unwrap()
}

#[tokio::test]
async fn connection_without_a_request_ends() {
    let cases: [(&[&[u8]], &[u8]); 5] = [
        (&[], b""),
        (&[HTTP_1], b""),
        (&[HTTP_1], b"GET / HT"),
        (&[HTTP_2, HTTP_1], b""),
        (&[HTTP_2, HTTP_1], BEGINNING),
    ];
    for (protocols, begin) in cases {
        let mut client = connect(protocols).await;
        client.write_all(begin).await.unwrap();
        // An error is an end, too: no TLS message announces it.
        let end = timeout(DEADLINE, client.read_to_end(&mut Vec::new())).await;
        assert!(end.is_ok(), "{protocols:?} {begin:?}");
    }
}

#[tokio::test]
async fn request_of_http_1_may_take_longer_than_the_limit() {
    let mut client = connect(&[HTTP_1]).await;
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let end = timeout(DEADLINE, client.read_to_end(&mut answer)).await;
    assert!(end.is_ok(), "an idle connection ends");
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("late"), "{answer}");
}

#[tokio::test]
async fn connection_of_http_2_outlasts_the_limit_after_its_first_request() {
    let stream = TokioIo::new(connect(&[HTTP_2, HTTP_1]).await);
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    drop(tokio::spawn(connection));
    for _ in 0..2 {
        let request = Request::get("/").body(Body::empty()).unwrap();
        let answer = timeout(DEADLINE, client.send_request(request)).await.unwrap().unwrap();
        assert_eq!(answer.status(), 200);
    }
}
