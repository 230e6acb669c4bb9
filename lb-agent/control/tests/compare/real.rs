//! The real kube-apiserver and its etcd, without root: ports by chance, a directory of their own.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tempfile::TempDir;
use tokio_rustls::TlsConnector;

use super::client::{Api, Reply};

/// A running server; it ends with the value.
pub(crate) struct Real {
    pub(crate) api: Api,
    pub(crate) port: u16,
    processes: Vec<Child>,
    directory: TempDir,
}

const TOKEN: &str = "compare";
const START: Duration = Duration::from_mins(1);

fn binary(name: &str) -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/control-plane/bin");
    let given = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    given.into_iter().chain([built]).map(|it| it.join(name)).find(|it| it.is_file())
}

/// Below those that the kernel gives to clients: a client that tries such a one too early meets itself.
fn free_port() -> u16 {
    let is_free = |it: &u16| TcpListener::bind(("127.0.0.1", *it)).is_ok();
    std::iter::repeat_with(|| fastrand::u16(10_000..30_000)).find(is_free).unwrap()
}

fn spawn(program: &Path, arguments: &[String], log: &Path) -> Child {
    let log = fs::File::create(log).unwrap();
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null()).stderr(log);
    command.spawn().unwrap()
}

impl Real {
    pub(crate) async fn start(cidrs: &str) -> Option<Self> {
        let (etcd, server) = (binary("etcd")?, binary("kube-apiserver")?);
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let [client, peer, port] = [free_port(), free_port(), free_port()];
        let url = format!("http://127.0.0.1:{client}");
        let peer = format!("http://127.0.0.1:{peer}");
        let etcd = spawn(
            &etcd,
            &[
                format!("--data-dir={}", path("etcd")),
                format!("--listen-client-urls={url}"),
                format!("--advertise-client-urls={url}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster=default={peer}"),
                "--unsafe-no-fsync".to_owned(),
            ],
            &directory.path().join("etcd.log"),
        );
        // The server makes this key with its own certificate; signing tokens with it spares another.
        let key = path("certificates/apiserver.key");
        fs::write(path("tokens"), format!("{TOKEN},admin,1,system:masters\n")).unwrap();
        let server = spawn(
            &server,
            &[
                format!("--etcd-servers={url}"),
                format!("--cert-dir={}", path("certificates")),
                "--bind-address=127.0.0.1".to_owned(),
                format!("--secure-port={port}"),
                format!("--service-cluster-ip-range={cidrs}"),
                "--service-account-issuer=https://localhost".to_owned(),
                format!("--service-account-key-file={key}"),
                format!("--service-account-signing-key-file={key}"),
                format!("--token-auth-file={}", path("tokens")),
                "--authorization-mode=AlwaysAllow".to_owned(),
                "--disable-admission-plugins=ServiceAccount".to_owned(),
            ],
            &directory.path().join("server.log"),
        );
        let api = Api::Real { port, token: TOKEN.to_owned(), tls: tls() };
        let real = Self { api, port, processes: vec![server, etcd], directory };
        real.wait().await;
        Some(real)
    }

    async fn wait(&self) {
        let deadline = Instant::now() + START;
        loop {
            let log =
                || fs::read_to_string(self.directory.path().join("server.log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "kube-apiserver does not answer:\n{}", log());
            let service = "/api/v1/namespaces/default/services/kubernetes";
            let is_there = |it: Result<Reply, _>| it.is_ok_and(|it| it.code == 200);
            if is_there(self.api.try_send("GET", "/readyz", "", None).await)
                && is_there(self.api.try_send("GET", service, "", None).await)
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub(crate) fn stop(&mut self) {
        for process in &mut self.processes {
            drop(process.kill());
            drop(process.wait());
        }
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        self.stop();
    }
}

fn tls() -> TlsConnector {
    let provider = Arc::new(default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.unwrap().dangerous().with_custom_certificate_verifier(Arc::new(Anybody));
    TlsConnector::from(Arc::new(config.with_no_client_auth()))
}

/// The server was started a moment ago on loopback with a certificate of its own making.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}
