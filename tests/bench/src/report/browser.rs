//! The report of benchmarks in a real browser: the page measures its own charts, in light and in dark colours.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// A script that checks the page as a person would see it: every text lies inside its chart and overlaps no other,
/// nothing is empty or sticks out, and nothing was fetched from the network.
const LOOK: &str = include_str!("browser/look.js");
/// Chromium's numbers of the colour schemes, and whether each is dark.
const LOOKS: [(&str, bool); 2] = [("1", false), ("0", true)];

/// The number of charts: for traffic three over services and nine of operations, for changes two and six of sizes, then
/// five and two.
const PICTURES: u64 = 3 + 9 + 2 + 6 + 5 + 2;

#[test]
fn a_report_is_whole_in_light_and_in_dark() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let results = [traffic(), churn(), scale(), packet()];
    let files = results.iter().enumerate().map(|(number, results)| -> Result<PathBuf> {
        let file = directory.path().join(format!("{number}.json"));
        fs::write(&file, results.to_string())?;
        Ok(file)
    });
    let page = directory.path().join("report.html");
    super::write(&files.collect::<Result<Vec<_>>>()?, &page)?;
    let text = fs::read_to_string(&page)?;
    let watched = text.replace("</body>", &format!("<script>{LOOK}</script></body>"));
    ensure!(watched != text, "the page has no </body>");
    fs::write(&page, watched)?;
    let mut papers = Vec::new();
    for (scheme, is_dark) in LOOKS {
        let found = look_at(&page, scheme)?;
        let what = serde_json::to_string_pretty(&found)?;
        ensure!(found["complaints"] == json!([]), "dark {is_dark}: {what}");
        ensure!(found["dark"] == is_dark, "{what}");
        let shapes = found["shapes"].as_u64().unwrap_or_default();
        ensure!(found["pictures"] == PICTURES && shapes > 200, "{what}");
        papers.push(found["paper"].clone());
    }
    ensure!(papers[0] != papers[1], "light and dark have the same background: {papers:?}");
    Ok(())
}

/// Opens a page and returns the results of the script in it.
fn look_at(page: &Path, scheme: &str) -> Result<Value> {
    let profile = tempfile::tempdir()?;
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .args(["--window-size=1440,2000", "--dump-dom"])
        .arg(format!("file://{}", page.display()))
        .output()
        .context("chromium\nremedy: cargo xtask setup installs it")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let found =
        text.split("<pre id=\"found\">").nth(1).and_then(|rest| rest.split("</pre>").next());
    let what = || String::from_utf8_lossy(&output.stderr).into_owned();
    let found = found.with_context(what)?.replace("&lt;", "<").replace("&gt;", ">");
    serde_json::from_str(&found.replace("&amp;", "&")).context(found)
}

fn results(bench: &str, rows: &[Value]) -> Value {
    json!({
        "schema": 2, "bench": bench, "commit": "0123456789", "command": format!("cargo xtask bench {bench}"),
        "time": 1_795_287_600, "notes": ["A <note> & more."],
        "machine": {
            "kernel": "6.18", "processor": "Some Processor 7742", "cpus": 2, "cpu": null, "megabytes": 24_000,
            "load": [0.1, 1.2],
        },
        "rows": rows,
    })
}

fn row(labels: &Value, measure: &str, unit: &str, median: f64) -> Value {
    json!({
        "labels": labels, "measure": measure, "unit": unit, "better": "less", "judged": true,
        "median": median, "low": median * 0.9, "high": median * 1.2,
        "rounds": 15, "dropped": 2, "disturbed": false,
    })
}

fn traffic() -> Value {
    let mut rows = Vec::new();
    let ways = [
        "plain",
        "kube-proxy-nftables",
        "kube-proxy-iptables",
        "ours",
        "ours-sockets",
        "plain-whole",
        "ours-xdp",
    ];
    for services in ["10", "1000", "10000", "50000"] {
        for (index, operation) in (0..).zip(["connect", "kept", "bulk"]) {
            for (place, way) in ways.into_iter().enumerate() {
                let labels = json!({
                    "way": way, "route": "pod-far", "operation": operation, "family": "IPv4", "services": services,
                });
                let value = 10_f64.powi(4 + 3 * index) * (1.0 + place as f64);
                rows.push(row(&labels, "rate", "requests/s", value));
                rows.push(row(&labels, "ratio", "x plain routing", 0.87));
                rows.push(row(&labels, "cpu", "us a request", 12.3));
                for (percent, value) in [(50, 45.6), (90, 78.9), (99, 12_345.6)] {
                    rows.push(row(&labels, &format!("latency {percent} %"), "us", value));
                }
            }
        }
    }
    let labels = json!({"way": "generator", "route": "loopback", "operation": "connect", "family": "IPv4", "services": "10"});
    rows.push(row(&labels, "rate", "requests/s", 75_000.0));
    results("traffic", &rows)
}

fn churn() -> Value {
    let mut rows = Vec::new();
    for (way, base) in [("ours", 4.0), ("kube-proxy-nftables", 900.0)] {
        for services in ["10", "1000", "10000"] {
            for change in ["endpoints", "service"] {
                let labels =
                    json!({"way": way, "services": services, "endpoints": "3", "change": change});
                rows.push(row(&labels, "latency 50 %", "ms", base));
                rows.push(row(&labels, "latency 99 %", "ms", base * 3.0));
            }
            let labels = json!({"way": way, "services": services, "endpoints": "3"});
            rows.push(row(&labels, "cold start", "s", base / 100.0));
            rows.push(row(&labels, "anonymous memory", "MB", base));
        }
    }
    results("churn", &rows)
}

fn scale() -> Value {
    let measures = [
        "anonymous memory",
        "peak memory",
        "map memory",
        "lists to programmed",
        "change to map 50 %",
    ];
    let rows = [("0", "0"), ("50000", "5")].into_iter().flat_map(|(services, endpoints)| {
        let labels = json!({"way": "ours", "services": services, "endpoints": endpoints});
        measures.map(|measure| row(&labels, measure, "MB", 185.8))
    });
    results("scale", &rows.collect::<Vec<_>>())
}

fn packet() -> Value {
    let mut rows = Vec::new();
    for program in ["translate_tc", "pod_ingress", "pod_egress"] {
        for flows in ["1", "65536"] {
            let labels = json!({
                "program": program, "hook": "tc", "case": "established", "flows": flows,
                "family": "v4", "transport": "tcp", "bytes": "62",
            });
            rows.push(row(&labels, "time", "ns", 123.0));
            if program != "translate_tc" {
                rows.push(row(&labels, "ratio to translate_tc", "x", 1.28));
            }
        }
    }
    results("packet", &rows)
}
