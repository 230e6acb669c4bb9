//! The control plane of the harness does what the tests rely on. Needs root.

use std::process::{self, Command};
use std::time::Duration;

use anyhow::{Result, ensure};
use lb_tests::control_plane::kube_proxy::{self, KubeProxy, Mode};
use lb_tests::control_plane::{ControlPlane, Node, Options, Pod};
use lb_tests::wait::wait_until;

const SOON: Duration = Duration::from_secs(30);

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  ipFamilyPolicy: RequireDualStack
  ipFamilies: [IPv4, IPv6]
  clusterIP: 10.96.7.7
  clusterIPs: [10.96.7.7, 'fd00:10:96::77']
  selector: {app: web}
  ports: [{port: 80, targetPort: http}]
";

const NODE: Node<'_> = Node {
    name: "node-a",
    addresses: &["192.0.2.1", "2001:db8::1"],
    pod_cidrs: &["10.1.0.0/24", "fd00:1::/64"],
    labels: &[("topology.kubernetes.io/zone", "a")],
};

const PODS: [Pod<'_>; 2] = [
    Pod {
        name: "web-1",
        addresses: &["10.1.0.11", "fd00:1::11"],
        ..web()
    },
    Pod {
        name: "web-2",
        addresses: &["10.1.0.12", "fd00:1::12"],
        ..web()
    },
];

#[test]
fn slices_follow_pods_across_a_restart_of_the_api_server() -> Result<()> {
    let netns = Namespace::new("smoke")?;
    let mut control_plane = start_in(&netns)?;
    control_plane.node(&NODE)?;
    control_plane.apply(SERVICE)?;
    control_plane.pods(&PODS)?;
    wait_for(
        &control_plane,
        &["10.1.0.11", "10.1.0.12", "fd00:1::11", "fd00:1::12"],
    )?;

    control_plane.stop_api_server();
    ensure!(
        control_plane.kubectl(&["get", "nodes"]).is_err(),
        "a stopped server answered"
    );
    control_plane.restart_api_server()?;
    control_plane.pod(&Pod {
        ready: false,
        ..PODS[0]
    })?;
    wait_for(&control_plane, &["10.1.0.12", "fd00:1::12"])?;

    control_plane.remove_pod("default", "web-2")?;
    wait_for(&control_plane, &[])
}

#[test]
fn kube_proxy_programs_its_namespace_in_both_modes() -> Result<()> {
    let netns = Namespace::new("proxy")?;
    let control_plane = start_in(&netns)?;
    control_plane.node(&NODE)?;
    control_plane.apply(SERVICE)?;
    control_plane.pods(&PODS)?;
    let kubeconfig = control_plane.kubeconfig();
    for (mode, list) in [
        (Mode::Nftables, &["nft", "list", "ruleset"][..]),
        (Mode::Iptables, &["iptables-save", "-t", "nat"][..]),
    ] {
        let options = kube_proxy::Options::new(&netns.name, mode, &kubeconfig, NODE.name);
        let _kube_proxy = KubeProxy::start(&options)?;
        wait_until(SOON, &format!("{mode:?} rules for 10.1.0.12"), || {
            netns.run(list).ok()?.contains("10.1.0.12").then_some(())
        })?;
    }
    Ok(())
}

#[test]
fn nothing_outlives_its_control_plane() -> Result<()> {
    let netns = Namespace::new("drop")?;
    let control_plane = start_in(&netns)?;
    let folder = control_plane.kubeconfig();
    let inhabitants = || run(&["ip", "netns", "pids", &netns.name]);
    wait_until(
        SOON,
        "etcd, API server and controller manager in the namespace",
        || (inhabitants().ok()?.lines().count() == 3).then_some(()),
    )?;
    drop(control_plane);
    ensure!(
        inhabitants()?.is_empty(),
        "a process outlived its control plane"
    );
    ensure!(
        !folder.exists(),
        "{} outlived its control plane",
        folder.display()
    );
    Ok(())
}

const fn web() -> Pod<'static> {
    Pod {
        name: "",
        namespace: "default",
        node: NODE.name,
        addresses: &[],
        labels: &[("app", "web")],
        ports: &[("http", 8080)],
        ready: true,
        host_network: false,
    }
}

fn start_in(netns: &Namespace) -> Result<ControlPlane> {
    ControlPlane::start(Options {
        netns: Some(netns.name.clone()),
        ..Options::default()
    })
}

fn wait_for(control_plane: &ControlPlane, expected: &[&str]) -> Result<()> {
    let what = format!("ready addresses {expected:?} of default/web");
    wait_until(SOON, &what, || {
        let ready = control_plane.ready_addresses("default", "web").ok()?;
        (ready == expected).then_some(())
    })
}

/// A network namespace with nothing but its loopback device.
struct Namespace {
    name: String,
}

impl Namespace {
    fn new(purpose: &str) -> Result<Self> {
        let namespace = Self {
            name: format!("lb-cp-{purpose}-{}", process::id()),
        };
        drop(run(&["ip", "netns", "add", &namespace.name])?);
        drop(namespace.run(&["ip", "link", "set", "lo", "up"])?);
        // The address of the node: kube-proxy asks for a default route too.
        drop(namespace.run(&["ip", "address", "add", "192.0.2.1/32", "dev", "lo"])?);
        Ok(namespace)
    }

    fn run(&self, command: &[&str]) -> Result<String> {
        run(&[&["ip", "netns", "exec", &self.name], command].concat())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(run(&["ip", "netns", "delete", &self.name]));
    }
}

fn run(command: &[&str]) -> Result<String> {
    let (program, arguments) = command
        .split_first()
        .ok_or_else(|| anyhow::anyhow!("no command"))?;
    let output = Command::new(program).args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{}: {said}", command.join(" "));
    Ok(String::from_utf8(output.stdout)?)
}
