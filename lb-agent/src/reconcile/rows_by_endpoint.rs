//! The row of each endpoint of a service port, in a sorted list: most ports have few endpoints, and there are many
//! ports.

use lb_common::addr::Endpoint;
use lb_common::service::BackendId;

/// Rows by endpoint, sorted.
#[derive(Debug, Default)]
pub(super) struct RowsByEndpoint(Vec<(Endpoint, BackendId)>);

impl RowsByEndpoint {
    fn find(&self, endpoint: &Endpoint) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| other.cmp(endpoint))
    }

    /// Returns the row of an endpoint.
    pub(super) fn get(&self, endpoint: &Endpoint) -> Option<BackendId> {
        self.find(endpoint).ok().and_then(|at| self.0.get(at)).map(|(_, row)| *row)
    }

    /// Sets the row of an endpoint, and returns the previous one.
    pub(super) fn insert(&mut self, endpoint: Endpoint, row: BackendId) -> Option<BackendId> {
        match self.find(&endpoint) {
            Ok(at) => self.0.get_mut(at).map(|(_, place)| std::mem::replace(place, row)),
            Err(at) => {
                self.0.insert(at, (endpoint, row));
                None
            }
        }
    }

    /// Removes the endpoints that are not wanted, and returns their rows. Spare capacity is freed.
    pub(super) fn keep(&mut self, is_wanted: impl Fn(&Endpoint) -> bool) -> Vec<BackendId> {
        let gone = self.0.extract_if(.., |(endpoint, _)| !is_wanted(endpoint));
        let gone = gone.map(|(_, row)| row).collect();
        self.0.shrink_to_fit();
        gone
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = BackendId> {
        self.0.iter().map(|(_, row)| *row)
    }

    /// Returns the number of endpoints.
    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Reports whether there are no endpoints.
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_common::addr::{Ip, Port};

    #[test]
    fn endpoints_have_one_row_each() {
        let at = |host: u8| Endpoint::new(Ip::v4([10, 0, 0, host]), Port::new(80));
        let mut rows = RowsByEndpoint::default();
        for (host, row) in [(3, 7), (1, 8), (2, 9)] {
            assert_eq!(rows.insert(at(host), row), None);
        }
        assert_eq!(rows.insert(at(1), 5), Some(8));
        assert_eq!((rows.get(&at(1)), rows.get(&at(4)), rows.len()), (Some(5), None, 3));
        assert_eq!(rows.keep(|endpoint| *endpoint != at(3)), [7]);
        assert_eq!(rows.rows().collect::<Vec<_>>(), [5, 9]);
    }
}
