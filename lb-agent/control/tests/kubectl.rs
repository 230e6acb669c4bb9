//! kubectl, unchanged, against the listener: by TLS, with the kubeconfigs that are made for it.
//!
//! Needs no root, and the kubectl of `cargo xtask setup` (or `KUBEBUILDER_ASSETS`).
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a step that fails ends the test")]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lb_control::files::Files;
use lb_control::identity::Identity;
use lb_control::serve::{Options, Running};
use lb_control::service::{PortRange, Ranges};
use tempfile::TempDir;

fn kubectl_binary() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/control-plane/bin");
    let given = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let found =
        given.into_iter().chain([built]).map(|it| it.join("kubectl")).find(|it| it.is_file());
    if found.is_none() {
        println!("skipped: kubectl is not there; remedy: cargo xtask setup");
    }
    found
}

struct Client {
    binary: PathBuf,
    directory: TempDir,
}

impl Client {
    fn run(&self, identity: &str, arguments: &[&str], input: &str) -> (bool, String) {
        let mut command = Command::new(&self.binary);
        command
            .arg(format!("--kubeconfig={}", self.directory.path().join(identity).display()))
            .arg(format!("--cache-dir={}", self.directory.path().join("cache").display()))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    }

    fn admin(&self, arguments: &[&str], input: &str) -> String {
        let (is_well, text) = self.run("admin.kubeconfig", arguments, input);
        assert!(is_well, "{arguments:?}: {text}");
        text
    }
}

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata:
  name: web
  labels: {app: web}
spec:
  type: NodePort
  clusterIP: 10.96.0.80
  selector:
    app: web
  ports:
  - port: 80
    targetPort: 8080
    nodePort: 30080
";

/// Every step of a day with kubectl, in order.
fn day(client: &Client) {
    assert_eq!(client.admin(&["apply", "-f", "-"], SERVICE), "service/web created\n");
    assert_eq!(client.admin(&["apply", "-f", "-"], SERVICE), "service/web unchanged\n");
    let changed = SERVICE.replace("8080", "http");
    assert_eq!(client.admin(&["apply", "-f", "-"], &changed), "service/web configured\n");
    let table = client.admin(&["get", "svc", "web"], "");
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..5], ["web", "NodePort", "10.96.0.80", "<none>", "80:30080/TCP"], "{table}");
    let created = client.admin(&["create", "service", "clusterip", "db", "--tcp=5432"], "");
    assert_eq!(created, "service/db created\n", "a body in protobuf");
    assert_eq!(client.admin(&["create", "namespace", "other"], ""), "namespace/other created\n");
    assert_eq!(client.admin(&["label", "svc", "web", "tier=a"], ""), "service/web labeled\n");
    let patch = r#"{"spec":{"sessionAffinity":"ClientIP"}}"#;
    assert_eq!(client.admin(&["patch", "svc", "web", "-p", patch], ""), "service/web patched\n");
    let seconds = "jsonpath={.spec.sessionAffinityConfig.clientIP.timeoutSeconds}";
    assert_eq!(client.admin(&["get", "svc", "web", "-o", seconds], ""), "10800");
    assert!(client.admin(&["describe", "svc", "web"], "").contains("10.96.0.80"));
    assert!(client.admin(&["explain", "service.spec.ports"], "").contains("nodePort"));
    assert!(client.admin(&["get", "all"], "").contains("service/web"));
    assert_eq!(client.admin(&["auth", "can-i", "delete", "services"], ""), "yes\n");
    let waited = client.admin(&["wait", "svc/web", "--for=jsonpath={.spec.type}=NodePort"], "");
    assert_eq!(waited, "service/web condition met\n");
    let twice = SERVICE.replace("name: web", "name: two").replace("10.96.0.80", "10.96.0.81");
    let (is_well, text) = client.run("admin.kubeconfig", &["apply", "-f", "-"], &twice);
    assert!(!is_well && text.contains("provided port is already allocated"), "{text}");
    let bogus = twice.replace("30080", "30081").replace("selector", "selektor");
    let (is_well, text) = client.run("admin.kubeconfig", &["apply", "-f", "-"], &bogus);
    assert!(!is_well && text.contains("unknown field \"spec.selektor\""), "{text}");
    let (is_well, text) = client.run("reader", &["delete", "svc", "web"], "");
    assert!(!is_well && text.contains("forbidden"), "{text}");
    assert!(client.run("reader", &["get", "svc"], "").0, "a reader reads");
    assert_eq!(client.admin(&["delete", "ns", "other"], ""), "namespace \"other\" deleted\n");
    assert!(client.admin(&["delete", "svc", "web"], "").contains("\"web\" deleted"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_with_kubectl() {
    let Some(binary) = kubectl_binary() else { return };
    let directory = tempfile::tempdir().unwrap();
    let nets = ["10.96.0.0/16", "fd00:10:96::/112"].map(|it| it.parse().unwrap());
    let ranges = Ranges::new(&nets, PortRange::default()).unwrap();
    let data = directory.path().to_owned();
    let listen = "127.0.0.1:0".parse().unwrap();
    let running = Running::start(Options { data, listen, ranges }).await.unwrap();
    let reader = Files::open(directory.path()).unwrap().kubeconfig(&Identity::Reader).unwrap();
    fs::write(directory.path().join("reader"), reader).unwrap();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let served = tokio::spawn(running.run(async { drop(ended.await) }));
    let client = Client { binary, directory };
    tokio::task::spawn_blocking(move || day(&client)).await.unwrap();
    end.send(()).unwrap();
    served.await.unwrap();
}
