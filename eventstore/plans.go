package eventstore

// KeyedPlans are the settings for sessions of the service, by their names in
// PostgreSQL. Every statement there finds its rows through an index. Plans are
// made once for each connection, since planning a statement over arrays takes
// longer than executing it, and perhaps while the tables are still empty: then
// everything looks equally cheap, and a plan that reads a whole month for each
// page would be kept until the server has analysed the table. What remains
// with these settings is the look-up by key. Nothing is compiled: PostgreSQL
// would, wherever a plan looks dear, and take a second for what takes a
// millisecond.
func KeyedPlans() map[string]string {
	return map[string]string{
		"plan_cache_mode":   "force_generic_plan",
		"enable_seqscan":    "off",
		"enable_bitmapscan": "off",
		"enable_hashjoin":   "off",
		"enable_mergejoin":  "off",
		"enable_material":   "off",
		"jit":               "off",
	}
}
