//! The commands of an operator, with the real binary: lists while the agent runs and after it has ended, and exit
//! codes.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::agent::Agent;
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, matrix};
use lb_tests::topology::{Addresses, Family, Member, Shape, Topology};
use lb_tests::traffic::{Ask, Protocol};
use lb_tests::wait::{try_wait_until, wait_until_ok};
use serde_json::Value;

in_both_shapes!(
    lists_speak_with_a_running_and_with_a_dead_agent,
    exit_codes_name_the_kind_of_failure,
    lists_name_policies_and_source_ranges,
    run_that_cannot_begin_says_why,
    maps_that_lag_behind_the_source_are_a_finding,
    service_manager_is_notified_and_resources_are_taken,
    service_manager_hears_of_a_reload_and_not_of_an_end,
);

/// An affinity timeout in seconds that outlasts the test.
const AFFINITY: u32 = 600;

fn start(shape: Shape) -> Result<(Rig, Service)> {
    let rig = Rig::build(Topology::builder(shape))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(30_080).pods(&rig.pods());
    let web = web.affinity(AFFINITY);
    Ok((rig.start(&[&web])?, web))
}

/// The rows that a list prints as JSON.
fn rows(agent: &Agent, arguments: &[&str]) -> Result<Vec<Value>> {
    let text = agent.command(&[arguments, &["-o", "json"]].concat())?;
    serde_json::from_str(&text).with_context(|| format!("{arguments:?} printed:\n{text}"))
}

fn says(agent: &Agent, arguments: &[&str], expected: &[&str]) -> Result<()> {
    let text = agent.command(arguments)?;
    for part in expected {
        ensure!(text.contains(part), "{arguments:?} does not say {part:?}:\n{text}");
    }
    ensure!(!text.contains('\x1b'), "{arguments:?} prints colours without a terminal");
    Ok(())
}

fn lists_speak_with_a_running_and_with_a_dead_agent(shape: Shape) -> Result<()> {
    let (mut rig, web) = start(shape)?;
    let mut agent = rig.take_agent(0)?;
    let client = rig.pod(0, 0)?;
    let backend = rig.pod(0, 1)?.addresses().socket(Family::V4, TARGET).to_string();
    for is_dead in [false, true] {
        if is_dead {
            agent.kill9()?;
        }
        for (family, protocol) in matrix() {
            drop(ask(client, Ask::new(protocol, web.frontend(family)))?);
        }
        services_are_named(&agent, &backend)?;
        lists_of_one_family_are_halves_of_the_whole(&agent)?;
        flows_are_listed_and_forgotten(&agent, client, &web)?;
        maps_are_measured(&agent)?;
    }
    Ok(())
}

fn services_are_named(agent: &Agent, backend: &str) -> Result<()> {
    says(agent, &["service", "list"], &["SERVICE", "default/web", "served", "10.96.0.10:80"])?;
    says(agent, &["service", "list", "-n", "other"], &["no services"])?;
    says(agent, &["service", "show", "web"], &["Service", "NodePort", backend, "affinity 600s"])?;
    says(agent, &["service", "show", "web", "-o", "yaml"], &["state: served"])?;
    says(agent, &["lb", "list", "-o", "wide"], &["GENERATION", "default/web"])?;
    says(agent, &["lb", "list", "-o", "name"], &["*:30080/TCP\n", "[fd00:10:96::10]:80/UDP\n"])?;
    let text = agent.command(&["lb", "list", "--no-headers"])?;
    ensure!(!text.contains("FRONTEND"), "headings in:\n{text}");
    // One Service port for each family and protocol.
    let services = rows(agent, &["service", "list", "-A"])?;
    ensure!(services.len() == 4, "{services:?}");
    Ok(())
}

fn flows_are_listed_and_forgotten(agent: &Agent, client: &Member, web: &Service) -> Result<()> {
    let frontend = web.frontend(Family::V6);
    let is_open = |flow: &Value| {
        flow["frontend"] == frontend.to_string()
            && flow["protocol"] == "UDP"
            && flow["state"] == "open"
            && flow["service"].as_str().is_some_and(|name| name.starts_with("default/web"))
    };
    let flows = rows(agent, &["ct", "list"])?;
    ensure!(flows.iter().any(is_open), "no open flow to {frontend} in {flows:#?}");
    let ip = client.addresses().socket(Family::V6, 0).ip().to_string();
    let stuck = rows(agent, &["affinity", "list", "-n", "default"])?;
    let is_ours = |row: &&Value| row["client"] == ip && row["backend"].is_string();
    ensure!(stuck.iter().filter(is_ours).count() == 2, "not two of {ip} in {stuck:#?}");
    let of = |filter: &[&str]| rows(agent, &[&["ct", "list"], filter].concat());
    ensure!(of(&["--client", &ip])?.iter().any(is_open), "not by its client");
    ensure!(
        of(&["--client", "192.0.2.1"])?.is_empty() && of(&["--backend", "192.0.2.1"])?.is_empty()
    );
    let others = ["ct", "flush", "--service", "web", "--backend", "192.0.2.1"];
    says(agent, &others, &["deleted 0 flow entries"])?;
    ensure!(of(&["--service", "web"])?.iter().any(is_open), "flows of another backend are gone");
    says(agent, &["ct", "flush", "--service", "web", "--client", &ip], &["deleted"])?;
    let flows = rows(agent, &["ct", "list"])?;
    ensure!(!flows.iter().any(is_open), "not forgotten: {flows:#?}");
    drop(ask(client, Ask::new(Protocol::Tcp, frontend))?);
    Ok(())
}

fn lists_of_one_family_are_halves_of_the_whole(agent: &Agent) -> Result<()> {
    for verb in [&["lb", "list"][..], &["service", "list"], &["ct", "list"], &["affinity", "list"]]
    {
        let count = |family: &'static [&'static str]| -> Result<usize> {
            Ok(rows(agent, &[verb, family].concat())?.len())
        };
        // Flows may be swept between two lists, so the lists are repeated until no sweep lies between them.
        wait_until_ok(Duration::from_secs(30), "lists of one moment", || {
            let before = count(&[])?;
            let (v4, v6, all) = (count(&["-4"])?, count(&["--ipv6"])?, count(&[])?);
            let words = format!("{verb:?}: {v4} of IPv4, {v6} of IPv6, {all} of both");
            ensure!(before == all && v4 + v6 == all && v6 > 0, "{words}, {before} before");
            Ok(())
        })?;
    }
    for row in rows(agent, &["lb", "list", "-6"])? {
        let frontend = row["frontend"].as_str().context("no frontend")?;
        ensure!(frontend.starts_with('['), "{frontend} is not of IPv6");
    }
    Ok(())
}

fn maps_are_measured(agent: &Agent) -> Result<()> {
    says(agent, &["map", "list"], &["SERVICES", "lpm trie", "BYTES"])?;
    for map in rows(agent, &["map", "list"])? {
        let bytes = map["bytes"].as_u64().context("no bytes")?;
        let entries = map["entries"].as_u64();
        // The kernel counts a trie by its nodes, and an empty one has none.
        ensure!(bytes > 0 || entries == Some(0), "a map without memory: {map}");
        ensure!(entries != Some(0) || map["name"] != "SERVICES", "empty: {map}");
    }
    Ok(())
}

/// A Service whose backends are on other nodes works: an operator must not look for its endpoints.
fn lists_name_policies_and_source_ranges(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let far = Service::new("far", 20)?.port(80, TARGET).node_port(30_090).external_policy_local();
    let far = far.pods(&[rig.pod(1, 0)?]);
    let empty = Service::new("empty", 21)?.port(80, TARGET).node_port(30_091);
    let empty = empty.external_policy_local();
    let closed = Service::new("closed", 22)?.port(80, TARGET).pods(&rig.pods());
    let vip = Addresses::parse("198.51.100.8", "fd00:198::8")?;
    let closed = closed.load_balancer(&vip.both(), &["203.0.113.0/24", "2001:db8::/32"]);
    let rig = rig.start(&[&far, &empty, &closed])?;
    let agent = rig.agent(0)?;
    let text = agent.command(&["service", "list"])?;
    for (name, state) in [("far", " no local backends "), ("empty", " no backends ")] {
        let lines = || text.lines().filter(|line| line.contains(&format!("/{name}:")));
        ensure!(lines().count() > 0 && lines().all(|line| line.contains(state)), "{name}: {text}");
    }
    says(agent, &["lb", "list"], &["(no local backends)", "(none)"])?;
    says(agent, &["service", "show", "closed"], &["Sources    203.0.113.0/24", "2001:db8::/32"])?;
    Ok(())
}

fn exit_codes_name_the_kind_of_failure(shape: Shape) -> Result<()> {
    let (mut rig, _) = start(shape)?;
    let mut agent = rig.take_agent(0)?;
    let cases: [(&[&str], i32); 9] = [
        (&["status"], 0),
        (&["takeover"], 0),
        (&["service", "list"], 0),
        (&["service", "show", "nobody"], 1),
        (&["ct", "flush", "--service", "nobody"], 1),
        (&["ct", "flush"], 2),
        (&["ct", "flush", "--all", "--service", "web"], 2),
        (&["lb", "list", "-o", "xml"], 2),
        (&["service", "list", "-n", "a", "-A"], 2),
    ];
    for (arguments, expected) in cases {
        let (code, text) = agent.exit_code(arguments)?;
        ensure!(code == expected, "{arguments:?} ended with {code}, not {expected}: {text}");
    }
    agent.stop()?;
    drop(agent.command(&["cleanup"])?);
    let lists: [&[&str]; 8] = [
        &["status"],
        &["takeover"],
        &["cleanup", "--drain"],
        &["service", "list"],
        &["lb", "list"],
        &["ct", "list"],
        &["affinity", "list"],
        &["map", "list"],
    ];
    try_wait_until(Duration::from_secs(30), "no data path is left", || {
        let (code, _) = agent.exit_code(&["lb", "list"])?;
        Ok((code == 3).then_some(()))
    })?;
    for arguments in lists {
        let (code, text) = agent.exit_code(arguments)?;
        ensure!(code == 3 && text.contains("lb-agent run"), "{arguments:?}: {code}, {text}");
    }
    Ok(())
}

fn run_that_cannot_begin_says_why(shape: Shape) -> Result<()> {
    let (mut rig, _) = start(shape)?;
    let directory = rig.manifests().directory().display().to_string();
    let mut agent = rig.take_agent(0)?;
    agent.stop()?;
    let broken = rig.node(0)?.directory().join("broken");
    std::fs::write(&broken, "clusters: {")?;
    let broken = broken.display().to_string();
    // The exit code is 2 for an invalid value, and 1 for a missing object.
    let cases: [(&[&str], i32, &str); 9] = [
        (&["--no-such-flag"], 2, "--no-such-flag"),
        (
            &["--manifests", &directory, "--map-size", "NOPE=1"],
            2,
            "choose one of SERVICES, MAGLEV,",
        ),
        (
            &["--manifests", &directory, "--map-size", "FLOWS=0"],
            2,
            "a map needs at least one entry",
        ),
        (&["--manifests", &directory, "--config", &broken], 2, &broken),
        (&["--master", "10.0.0.1"], 2, "write it as https://10.0.0.1:6443"),
        (&["--kubeconfig", "/nowhere/config"], 1, "kubeconfig /nowhere/config: "),
        (&["--kubeconfig", &broken], 1, "failed to parse kubeconfig YAML"),
        (&["--manifests", "/nowhere"], 1, "give an existing directory to --manifests"),
        (&["--manifests", &directory, "--cgroup", "/proc"], 1, "/proc is not a cgroup v2: give"),
    ];
    for (flags, expected, named) in cases {
        let (code, text) =
            agent.exit_code(&[&["run", "--hostname-override=node-a"], flags].concat())?;
        ensure!(code == expected, "{flags:?} ended with {code}, not {expected}: {text}");
        ensure!(text.contains(named), "{flags:?} does not say {named:?}: {text}");
    }
    Ok(())
}

fn maps_that_lag_behind_the_source_are_a_finding(shape: Shape) -> Result<()> {
    let (mut rig, web) = start(shape)?;
    let directory = rig.manifests().directory().display().to_string();
    let diff = ["lb", "diff", "--manifests", &directory];
    let mut agent = rig.take_agent(0)?;
    says(&agent, &diff, &["no differences"])?;
    agent.kill9()?;
    says(&agent, &diff, &["no differences"])?;
    rig.manifests().apply(&web.pods(&[rig.pod(1, 1)?]))?;
    let (code, text) = agent.exit_code(&diff)?;
    ensure!(code == 1, "a source with a change: {code}, {text}");
    let (code, _) = agent.exit_code(&["lb", "diff", "--manifests", "/nowhere"])?;
    ensure!(code == 3, "a source that does not exist: {code}");
    rig.manifests().write_text("broken", "kind: [Service\n")?;
    let (code, text) = agent.exit_code(&diff)?;
    ensure!(code == 3, "a manifest that cannot be read: {code}, {text}");
    std::fs::remove_file(rig.manifests().directory().join("broken.yaml"))?;
    agent.start_again()?;
    says(&agent, &diff, &["no differences"])
}

/// A service manager kills a process that goes on after `STOPPING=1`.
fn service_manager_hears_of_a_reload_and_not_of_an_end(shape: Shape) -> Result<()> {
    let mut rig = Rig::build(Topology::builder(shape).nodes(1))?;
    let flag = rig.configuration("masquerade: edge")?;
    rig.start_agents(&[&flag])?;
    let mut agent = rig.take_agent(0)?;
    agent.stop()?;
    let path = rig.node(0)?.directory().join("notify");
    let manager = UnixDatagram::bind(&path)?;
    manager.set_read_timeout(Some(Duration::from_mins(1)))?;
    let hear = || -> Result<String> {
        let mut text = [0; 512];
        let length = manager.recv(&mut text).context("nothing more is said")?;
        Ok(std::str::from_utf8(text.get(..length).unwrap_or_default())?.trim().to_owned())
    };
    agent.start_again_with(&[("NOTIFY_SOCKET", &path.display().to_string())])?;
    ensure!(hear()? == "READY=1");
    drop(rig.configuration("masquerade: kube-proxy")?);
    let text = hear()?;
    ensure!(text.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{text}");
    ensure!(hear()? == "READY=1");
    agent.stop()?;
    ensure!(hear()? == "STOPPING=1");
    Ok(())
}

fn service_manager_is_notified_and_resources_are_taken(shape: Shape) -> Result<()> {
    // Upwards, because lowering the score needs CAP_SYS_RESOURCE, which not every machine gives to root.
    let mut rig = Rig::build(Topology::builder(shape))?;
    rig.start_agents(&["--oom-score-adj=500"])?;
    let mut agent = rig.take_agent(0)?;
    agent.stop()?;
    let path = rig.node(0)?.directory().join("notify");
    let manager = UnixDatagram::bind(&path)?;
    manager.set_read_timeout(Some(Duration::from_secs(30)))?;
    let hears = |expected: &str| -> Result<()> {
        let mut text = [0; 512];
        let length = manager.recv(&mut text).with_context(|| format!("no {expected}"))?;
        let heard = std::str::from_utf8(text.get(..length).unwrap_or_default())?;
        ensure!(heard.trim() == expected, "{heard:?}, not {expected}");
        Ok(())
    };
    let socket = path.display().to_string();
    agent.start_again_with(&[("NOTIFY_SOCKET", &socket), ("WATCHDOG_USEC", "2000000")])?;
    hears("READY=1\nWATCHDOG_USEC=2000000")?;
    hears("WATCHDOG=1")?;
    hears("WATCHDOG=1")?;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", agent.id()))?;
    let files = limits.lines().find(|line| line.starts_with("Max open files"));
    let numbers: Vec<&str> = files.context("no limit")?.split_whitespace().skip(3).collect();
    ensure!(numbers.first() == numbers.get(1), "soft and hard: {numbers:?}");
    let score = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", agent.id()))?;
    ensure!(score.trim() == "500", "oom_score_adj is {score}");
    agent.stop()?;
    // Watchdog messages may still precede it in the socket; the socket's timeout is the deadline.
    while let Err(error) = hears("STOPPING=1") {
        ensure!(error.to_string().contains("WATCHDOG=1"), "no STOPPING=1: {error}");
    }
    Ok(())
}
