//! A real directory, changed as editors, scripts and the kubelet change directories.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::UNIX_EPOCH;

use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::*;
use crate::plan::ServiceName;

struct Run {
    directory: TempDir,
    view: ViewHealth,
    events: mpsc::Receiver<Event>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn service(name: &str, ip: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{ name: {name} }}\n\
         spec: {{ clusterIP: {ip}, ports: [{{ port: 80 }}] }}\n"
    )
}

impl Run {
    /// Follows a directory with these files, and drops the first events.
    async fn with(files: &[(&str, &str)]) -> (Self, Vec<String>) {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, content) in files {
            fs::write(directory.path().join(name), content).expect("a file");
        }
        let (sender, events) = mpsc::channel(1000);
        let view = ViewHealth::default();
        let manifests = Manifests::open(directory.path(), "here").expect("a directory");
        let task = tokio::spawn(manifests.run(view.clone(), sender));
        let mut run = Self { directory, view, events, task };
        let mut first = Vec::new();
        while first.iter().filter(|word| *word == "synced").count() < ObjectKind::ALL.len() {
            first.push(run.next().await);
        }
        first.retain(|word| word != "synced" && word != "list");
        (run, first)
    }

    async fn next(&mut self) -> String {
        let event = timeout(Duration::from_mins(1), self.events.recv()).await;
        words(event.expect("an event in time").expect("a sender"))
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.directory.path().join(name), content).expect("a file");
    }

    /// Moves a new file over an old one.
    fn replace(&self, name: &str, content: &str) {
        self.write(".new", content);
        fs::rename(self.directory.path().join(".new"), self.directory.path().join(name))
            .expect("moved");
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.directory.path().join(name)).expect("removed");
    }

    async fn problems(&self, count: usize) -> Vec<String> {
        let check = async {
            while self.view.problems().len() != count {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_mins(1), check).await.expect("that many problems");
        self.view.problems().iter().map(ToString::to_string).collect()
    }
}

fn words(event: Event) -> String {
    let ip = |ip: Option<std::net::IpAddr>| ip.map(|ip| ip.to_string()).unwrap_or_default();
    match event {
        Event::ServiceApplied(spec) => format!("+{} {}", spec.name.name, ip(spec.cluster.v4)),
        Event::ServiceDeleted(ServiceName { name, .. }) => format!("-{name}"),
        Event::SliceApplied(slice) => format!("+{} {}", slice.name.name, slice.endpoints.len()),
        Event::SliceDeleted(slice) => format!("-{}", slice.name),
        Event::NodeApplied(node) => format!("+{}", node.name),
        Event::NodeDeleted(name) => format!("-{name}"),
        Event::ServiceCidrs(cidrs) => format!("{} cidrs", cidrs.len()),
        Event::ListBegan(_) => "list".to_owned(),
        Event::Synced(_) => "synced".to_owned(),
        Event::ServiceKept(_)
        | Event::SliceKept(_)
        | Event::NodeKept(_)
        | Event::SyncedInPart(_) => "of a watch alone".to_owned(),
    }
}

#[tokio::test]
async fn existing_objects_are_reported_before_synced() {
    let all = "\
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: { name: web-1, labels: { kubernetes.io/service-name: web } }
addressType: IPv4
endpoints: [{ addresses: [10.1.0.1] }]
ports: [{ port: 8080 }]
---
{ apiVersion: v1, kind: Node, metadata: { name: here } }
---
{ apiVersion: v1, kind: Node, metadata: { name: there } }
---
{ apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: { name: x }, spec: { cidrs: [10.0.0.0/16] } }
";
    let files = [
        ("a.yaml", &*service("web", "10.0.0.1")),
        ("b.yml", all),
        ("notes.txt", "{"),
        (".c.yaml", "{"),
    ];
    let (run, first) = Run::with(&files).await;
    assert_eq!(first, ["+web 10.0.0.1", "+web-1 1", "+here", "1 cidrs"]);
    assert_eq!(run.view.problems(), []);
    assert!(run.view.kinds().values().all(|view| view.synced && view.stale.is_none()));
}

#[tokio::test]
async fn added_changed_and_removed_files_are_reported() {
    let (mut run, first) = Run::with(&[]).await;
    assert_eq!(first, Vec::<String>::new());
    run.write("a.yaml", &service("web", "10.0.0.1"));
    assert_eq!(run.next().await, "+web 10.0.0.1");
    run.replace("a.yaml", &service("web", "10.0.0.2"));
    assert_eq!(run.next().await, "+web 10.0.0.2");
    run.replace("a.yaml", &service("web", "10.0.0.2"));
    run.replace("a.yaml", &service("other", "10.0.0.3"));
    assert_eq!(run.next().await, "-web");
    assert_eq!(run.next().await, "+other 10.0.0.3");
    run.remove("a.yaml");
    assert_eq!(run.next().await, "-other");
}

#[tokio::test]
async fn a_slice_goes_when_it_is_labelled_as_one_of_a_headless_service() {
    let slice = |label: &str| {
        format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
             metadata: {{ name: web-1, labels: {{ kubernetes.io/service-name: web{label} }} }}\n\
             endpoints: [{{ addresses: [10.1.0.1] }}]\n"
        )
    };
    let (mut run, first) = Run::with(&[("a.yaml", &slice(""))]).await;
    assert_eq!(first, ["+web-1 1"]);
    run.replace("a.yaml", &slice(", service.kubernetes.io/headless: ''"));
    assert_eq!(run.next().await, "-web-1");
    run.replace("a.yaml", &slice(""));
    assert_eq!(run.next().await, "+web-1 1");
    assert_eq!(run.view.problems(), []);
}

#[tokio::test]
async fn a_service_is_as_old_as_the_file_it_was_first_seen_in() {
    let (mut run, _) = Run::with(&[]).await;
    run.write(".new", &service("web", "10.0.0.1"));
    let new = run.directory.path().join(".new");
    let file = fs::File::open(&new).expect("a file");
    file.set_modified(UNIX_EPOCH + Duration::from_secs(1000)).expect("a time");
    fs::rename(&new, run.directory.path().join("a.yaml")).expect("moved");
    for (ip, next) in [("10.0.0.1", "10.0.0.2"), ("10.0.0.2", "10.0.0.3")] {
        let event = timeout(Duration::from_mins(1), run.events.recv()).await;
        let Some(Event::ServiceApplied(spec)) = event.expect("an event in time") else {
            panic!("a Service");
        };
        assert_eq!((spec.cluster.v4, spec.created), (Some(ip.parse().expect("an address")), 1000));
        run.replace("a.yaml", &service("web", next));
    }
}

#[tokio::test]
async fn only_the_objects_that_changed_are_reported() {
    let two = |ip: &str| service("a", "10.0.0.1") + "---\n" + &service("b", ip);
    let (mut run, _) = Run::with(&[("a.yaml", &two("10.0.0.2"))]).await;
    run.replace("a.yaml", &two("10.0.0.3"));
    assert_eq!(run.next().await, "+b 10.0.0.3");
    run.replace("a.yaml", &service("a", "10.0.0.1"));
    assert_eq!(run.next().await, "-b");
}

#[tokio::test]
async fn a_file_is_read_when_its_writer_has_closed_it() {
    use std::io::Write as _;
    let (mut run, _) = Run::with(&[("a.yaml", &service("web", "10.0.0.1"))]).await;
    let text = service("web", "10.0.0.2");
    let mut file = fs::File::create(run.directory.path().join("a.yaml")).expect("a file");
    for part in text.as_bytes().chunks(7) {
        file.write_all(part).expect("written");
        tokio::task::yield_now().await;
    }
    drop(file);
    assert_eq!(run.next().await, "+web 10.0.0.2");
    assert_eq!(run.view.problems(), []);
}

#[tokio::test]
async fn broken_file_keeps_its_last_valid_content() {
    let (mut run, _) = Run::with(&[("a.yaml", &service("web", "10.0.0.1"))]).await;
    run.replace("a.yaml", "apiVersion: v1\nkind: Service\nmetadata: { name: web }\nspec: [\n");
    let problems = run.problems(1).await;
    let place = format!("file {}/a.yaml: line ", run.directory.path().display());
    assert!(problems[0].starts_with(&place), "{problems:?}");
    assert!(
        problems[0].ends_with("; its last valid content stays in effect; correct it"),
        "{problems:?}"
    );
    run.write("b.yaml", &service("other", "10.0.0.3"));
    assert_eq!(run.next().await, "+other 10.0.0.3", "the others are not concerned");
    run.replace("a.yaml", &service("web", "10.0.0.2"));
    assert_eq!(run.next().await, "+web 10.0.0.2");
    assert_eq!(run.problems(0).await, Vec::<String>::new());
}

#[tokio::test]
async fn of_two_files_with_one_object_the_last_name_counts() {
    let (mut run, first) = Run::with(&[
        ("a.yaml", &service("web", "10.0.0.1")),
        ("b.yaml", &service("web", "10.0.0.2")),
    ])
    .await;
    assert_eq!(first.last().map(String::as_str), Some("+web 10.0.0.2"));
    let problem = format!(
        "directory {}: Service default/web: is in a.yaml and b.yaml; b.yaml counts; \
         delete it from the others",
        run.directory.path().display()
    );
    assert_eq!(run.problems(1).await, [problem]);
    run.write("a.yaml", &service("web", "10.0.0.3"));
    run.remove("b.yaml");
    assert_eq!(run.next().await, "+web 10.0.0.3");
    assert_eq!(run.problems(0).await, Vec::<String>::new());
    run.write("0.yaml", &service("web", "10.0.0.4"));
    assert_eq!(run.problems(1).await.len(), 1);
    run.remove("0.yaml");
    run.remove("a.yaml");
    assert_eq!(run.next().await, "-web");
}

#[tokio::test]
async fn a_volume_of_the_kubelet_is_followed() {
    let (mut run, _) = Run::with(&[]).await;
    let path = run.directory.path().to_owned();
    let fill = |version: &str, ip: &str| {
        fs::create_dir(path.join(version)).expect("a directory");
        fs::write(path.join(version).join("a.yaml"), service("web", ip)).expect("a file");
        symlink(version, path.join("..new")).expect("a link");
        fs::rename(path.join("..new"), path.join("..data")).expect("moved");
    };
    fill("..1", "10.0.0.1");
    symlink("..data/a.yaml", path.join("a.yaml")).expect("a link");
    assert_eq!(run.next().await, "+web 10.0.0.1");
    fill("..2", "10.0.0.2");
    assert_eq!(run.next().await, "+web 10.0.0.2");
}

#[tokio::test]
async fn only_regular_files_are_read() {
    let (mut run, _) = Run::with(&[]).await;
    let path = run.directory.path().join("pipe.yaml");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    fs::rename(&path, run.directory.path().join("moved.yaml")).expect("moved");
    run.write("a.yaml", &service("web", "10.0.0.1"));
    assert_eq!(run.next().await, "+web 10.0.0.1");
    let problems = run.problems(1).await;
    assert!(problems[0].contains("content: is not a regular file"), "{problems:?}");
}

#[tokio::test]
async fn objects_that_lack_something_are_named_and_the_others_stay() {
    let text = "\
{ apiVersion: v1, kind: Service, metadata: {} }
---
{ apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: { name: x }, addressType: IPv4, endpoints: [] }
---
";
    let (run, first) =
        Run::with(&[("a.yaml", &(text.to_owned() + &service("web", "10.0.0.1")))]).await;
    assert_eq!(first, ["+web 10.0.0.1", "+x 0"]);
    let problems = run.problems(2).await;
    assert!(problems[0].contains("Service metadata.name: is missing"), "{problems:?}");
    assert!(problems[1].contains("EndpointSlice default/x metadata.labels"), "{problems:?}");
}

#[tokio::test]
async fn a_directory_that_vanishes_leaves_the_last_view_and_may_come_back() {
    let (mut run, _) = Run::with(&[("a.yaml", &service("web", "10.0.0.1"))]).await;
    let path = run.directory.path().to_owned();
    let away = path.with_extension("away");
    fs::rename(&path, &away).expect("moved");
    let check = async {
        while run.view.oldest().is_none() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_mins(1), check).await.expect("stale");
    assert!(run.events.try_recv().is_err(), "nothing is deleted");
    fs::write(away.join("a.yaml"), service("web", "10.0.0.2")).expect("a file");
    fs::rename(&away, &path).expect("moved");
    assert_eq!(run.next().await, "+web 10.0.0.2");
    assert_eq!(run.view.oldest(), None);
}

#[tokio::test]
async fn a_missing_directory_is_an_error_that_names_it() {
    let error = Manifests::open(Path::new("/nowhere/manifests"), "here").expect_err("an error");
    assert_eq!(
        error.to_string(),
        "manifests /nowhere/manifests: No such file or directory (os error 2); \
         give an existing directory to --manifests"
    );
}

#[tokio::test]
async fn directory_watch_ends_when_its_receiver_is_closed() {
    let (mut run, _) = Run::with(&[]).await;
    run.events.close();
    timeout(Duration::from_mins(1), &mut run.task).await.expect("an end").expect("no panic");
}
