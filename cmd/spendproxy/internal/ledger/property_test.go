package ledger_test

import _ "pgregory.net/rapid"
