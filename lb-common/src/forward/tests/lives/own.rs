//! Connections that the node began from the port of a `NodePort`: how long their answers are known.

use crate::fake::{fixtures, run};
use crate::flow::DIRECT_SEEN;
use crate::tables::Filters as _;

/// Packets of pods straight to backends, from ever new ports, make the node forget none of its own connections.
#[test]
fn answers_to_own_connections_are_known_after_any_number_of_direct_packets() {
    let is_own = |name: &str| name.starts_with("answer_to_an_own_");
    let mut tried = 0;
    for fixture in fixtures::all().into_iter().filter(|fixture| is_own(&fixture.name)) {
        for step in &fixture.steps {
            assert_eq!(run(step, &fixture.tables).0, step.verdict, "{}", fixture.name);
            for place in 0..DIRECT_SEEN {
                fixture.tables.put_direct(1 << 40 | u64::from(place));
            }
        }
        tried += 1;
    }
    assert!(tried > 10, "{tried} fixtures");
}
